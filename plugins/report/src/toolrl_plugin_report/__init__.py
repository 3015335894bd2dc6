"""The plugin `report`: a run of toolrl as one HTML page."""
