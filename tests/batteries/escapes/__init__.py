"""The attacks of the escape battery, by class, and the things outside that they are after."""
