//! Failures on demand: how an emulated site misbehaves.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Answers with this status at once.
    Status(u16),
    /// Takes the request and never answers.
    Stall,
    /// Breaks the connection after this many tokens of the answer.
    Break(u32),
    /// Makes so many tokens more of prompts with tools, at their beginning, as another template
    /// would.
    ToolTokens(u32),
}

/// A failure of the next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// To how many requests; to all when absent.
    #[serde(default)]
    pub times: Option<u32>,
}

/// The failure that is set, if any.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Option<Fault>>>);

impl Faults {
    /// Replaces what is set.
    pub fn set(&self, fault: Option<Fault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// What happens to the next request.
    pub(super) fn take(&self) -> Option<FaultKind> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = slot.as_mut()?;
        let kind = fault.kind;
        if let Some(times) = &mut fault.times {
            let Some(left) = times.checked_sub(1) else {
                *slot = None;
                return None;
            };
            *times = left;
        }
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_happens_as_often_as_it_says() {
        let faults = Faults::default();
        let kind = FaultKind::Status(503);
        faults.set(Some(Fault {
            kind,
            times: Some(2),
        }));

        let taken: Vec<_> = (0..3).map(|_| faults.take()).collect();

        assert_eq!(taken, [Some(kind), Some(kind), None]);
    }

    #[test]
    fn a_fault_without_a_number_stays_until_it_is_taken_away() {
        let faults = Faults::default();
        faults.set(Some(Fault {
            kind: FaultKind::Stall,
            times: None,
        }));
        assert_eq!(faults.take(), Some(FaultKind::Stall));
        assert_eq!(faults.take(), Some(FaultKind::Stall));

        faults.set(None);

        assert_eq!(faults.take(), None);
    }
}
