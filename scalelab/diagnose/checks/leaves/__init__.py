"""Does each part of the model have a sensible size, and does it move?"""
