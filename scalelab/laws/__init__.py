"""Scaling laws: forms, exact fits with a certificate, intervals, decisions. Needs numpy and scipy; never the trainer."""
