"""Turn records into figures and pages: the only room that imports matplotlib or writes HTML."""
