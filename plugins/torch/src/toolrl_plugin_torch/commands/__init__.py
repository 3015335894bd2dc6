"""The trainer's commands. Their modules import no torch: what is wrong with a config is found before it is loaded."""
