//! How many requests are open, for who has to know when the first one comes.

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

/// Clients' requests that are being answered; clones share the count.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequests {
    count: Gauge,
    begun: watch::Sender<()>,
}

impl Default for OpenRequests {
    fn default() -> Self {
        Self {
            count: Gauge::default(),
            begun: watch::Sender::new(()),
        }
    }
}

impl OpenRequests {
    /// Counts a request in; dropping the guard counts it out.
    pub(crate) fn begin(&self) -> InFlight {
        if self.count.inc() == 0 {
            self.begun.send_replace(());
        }
        InFlight(self.count.clone())
    }

    /// Whether there is any.
    pub(crate) fn any(&self) -> bool {
        self.count.get() > 0
    }

    /// Changes whenever a request comes while there is no other.
    pub(crate) fn begun(&self) -> watch::Receiver<()> {
        self.begun.subscribe()
    }

    /// The count itself, to be shown.
    pub(crate) fn gauge(&self) -> Gauge {
        self.count.clone()
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_several_open_requests_is_told_of() {
        let open = OpenRequests::default();
        let mut begun = open.begun();
        assert!(!open.any());

        let first = open.begin();
        assert!(begun.has_changed().unwrap());
        begun.mark_unchanged();
        let second = open.begin();
        drop(first);

        assert!(open.any());
        assert!(!begun.has_changed().unwrap());
        drop(second);
        assert!(!open.any());
        let _third = open.begin();
        assert!(begun.has_changed().unwrap());
    }
}
