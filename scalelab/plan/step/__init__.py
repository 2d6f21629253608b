"""The time of one training step.

Read in this order: `block_products` (what a block multiplies), `operations` (all of a step), `update` (the
optimizer's), `traffic` and `links` (collectives), `bubble` (pipelines), `device_share` (the fullest device),
`efficiency` (measured shares of peak), `systems` and `savings` (how systems differ), `flops`, `time` (the sum).
"""
