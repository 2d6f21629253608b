"""What did the loss do: spikes, and the guard's alarms?"""
