//! A decision in one line, for logs and people.

use std::fmt;

use super::depth::Overlap;
use super::score::Cost;
use super::tiebreak::Pick;
use super::{Candidate, Decision, Refusal, Verdict};

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(choice) => write!(f, "{} via {}, {}", choice.site, choice.relay, choice.pick)?,
            Err(refusal) => refusal.fmt(f)?,
        }
        for (index, candidate) in self.candidates().enumerate() {
            f.write_str(if index == 0 { ": " } else { "; " })?;
            candidate.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Candidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verdict {
            Verdict::Excluded(exclusion) => write!(f, "{} excluded, {exclusion}", self.site),
            Verdict::Scored(score) => {
                let unknown = if score.load_known {
                    ""
                } else {
                    " load unknown"
                };
                write!(
                    f,
                    "{} {:.1} ms ({}){unknown}, {} of {} tokens",
                    self.site, score.total_ms, score.cost, score.overlap, score.prompt_tokens
                )?;
                f.write_str(if score.aside { ", set aside" } else { "" })
            }
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rtt {:.1} + upload {:.1} + queue {:.1} + prefill {:.1}",
            self.rtt_ms, self.upload_ms, self.queue_ms, self.prefill_ms
        )
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "overlap {}", self.tokens)?;
        if self.predicted > 0 {
            write!(f, ", sent {}", self.predicted)?;
        }
        if self.expected_tokens != self.tokens.max(self.predicted) {
            write!(f, " (expected {})", self.expected_tokens)?;
        }
        if self.stale {
            f.write_str(" stale")?;
        }
        Ok(())
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cheapest => f.write_str("cheapest"),
            Self::Deepest => f.write_str("deepest in the band"),
            Self::Drawn(among) => write!(f, "drawn from {among} equals"),
            Self::Affine(among) => write!(f, "the session's of {among} equals"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel => f.write_str("no site serves the model"),
            Self::TooLong { limit } => write!(f, "no site takes more than {limit} tokens"),
            Self::Unavailable => {
                f.write_str("each that has the model is away, not ready, leaving or not allowed")
            }
        }
    }
}
