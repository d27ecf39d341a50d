"""The whole loop on bundled photographs, with a report: what ``haystack demo`` runs."""
