"""Numbers as people write them (`written`: the one parser), and gaps of losses over seeds (`gaps`: the one judge)."""
