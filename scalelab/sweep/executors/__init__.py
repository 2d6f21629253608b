"""The executors that run the packs of a sweep: a pool of workers here, an array job of Slurm, a list of commands.

Read in this order: `choice` (which one, from the command line), `pool` (starts workers and hands out packs), `worker`
(trains one pack after the other), `devices` (an accelerator for each worker); `jobs` (a pack as a file), `slurm`
(submits, watches, cancels), `element` (what a job of Slurm does), `queue` (Slurm's own commands); `manifest` (the same
packs as commands for other engines).
"""
