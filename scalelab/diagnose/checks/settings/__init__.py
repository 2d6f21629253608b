"""Do the settings suit the run?"""
