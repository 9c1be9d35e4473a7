"""Pass@1 and paired comparisons. Imports nothing: a report needs no Tinker SDK, which takes seconds to import."""
