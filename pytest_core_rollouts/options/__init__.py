"""The plugin's options and ini keys, checked into one `Settings`."""
