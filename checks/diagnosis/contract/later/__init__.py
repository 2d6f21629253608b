"""Sets of cases that are run through a door of their own, so that earlier results stay what they are."""
