"""The time of one training step.

Read in this order: `block_products` (what a block multiplies), `operations` (all of a step), `update` (the
optimizer's), `expert_rows` (what experts multiply and send), `traffic` and `links` (collectives), `device_share` (the
fullest device, and a pipeline's idle time), `efficiency` (measured shares of peak), `systems` and `savings` (how
systems differ), `flops`, `time` (the sum).
"""
