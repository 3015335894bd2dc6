"""Finding plugins, keeping what they register, and telling observers what happens."""
