//! The decision: eligibility, score, tiebreak.
