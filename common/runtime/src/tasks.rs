//! What a process runs, and how it stops.
//!
//! Every task is spawned here, so that none outlives the process's end: [`Tasks::stop`] tells
//! all of them, and [`Tasks::finish`] waits for them, but not for ever. A task that the process
//! cannot do without is spawned with [`Tasks::spawn_vital`]: its end, by panic too, stops the
//! process, since half a node is worse than a restarted one.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

/// The tasks of a process; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// No tasks yet, and nothing to stop.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a task. If it panics, that is logged, and everything else goes on.
    pub fn spawn<F>(&self, name: &'static str, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(async move {
            let _report = ReportPanic(name);
            task.await
        })
    }

    /// Runs a task whose end, however it comes, is the end of the process.
    pub fn spawn_vital<F>(&self, name: &'static str, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let vital = StopWithIt {
            name,
            tasks: self.token.clone(),
        };
        self.spawn(name, async move {
            let _vital = vital;
            task.await;
        })
    }

    /// Tells all tasks to stop.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Waits until the tasks are told to stop.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }

    /// Whether the tasks have been told to stop.
    pub fn is_stopping(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The token behind [`Self::stop`], for code that has its own way of waiting.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// How many tasks run.
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no task runs.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Stops all tasks and waits for them; says whether all ended within `grace`.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.stop();
        self.tracker.close();
        let ended = tokio::time::timeout(grace, self.tracker.wait())
            .await
            .is_ok();
        if !ended {
            warn!(tasks = self.tracker.len(), "Tasks did not end in time");
        }
        ended
    }
}

/// Waits for what ends a process: SIGTERM, SIGINT, or its tasks stopping by themselves.
#[derive(Debug)]
pub struct Termination {
    terminate: Signal,
    interrupt: Signal,
    token: CancellationToken,
}

impl Termination {
    /// Puts the handlers in place; from then on signals alone no longer end the process.
    pub fn new(tasks: &Tasks) -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            token: tasks.token.clone(),
        })
    }

    /// Waits for the next signal, or for the tasks to stop. Cancel safe.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!(signal = "SIGTERM", "Stopping"),
            _ = self.interrupt.recv() => info!(signal = "SIGINT", "Stopping"),
            () = self.token.cancelled() => {}
        }
    }

    /// Lets a process end its work in order, unless another signal or the end of its tasks
    /// cuts that short.
    pub async fn unless_again(&mut self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.next() => warn!("Stopping at once"),
        }
    }
}

struct ReportPanic(&'static str);

impl Drop for ReportPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!(task = self.0, "Task panicked");
        }
    }
}

struct StopWithIt {
    name: &'static str,
    tasks: CancellationToken,
}

impl Drop for StopWithIt {
    fn drop(&mut self) {
        if !self.tasks.is_cancelled() {
            error!(task = self.name, "Vital task ended; stopping");
            self.tasks.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finish_waits_for_a_task_that_stops_when_told() {
        let tasks = Tasks::new();
        let task = tasks.clone();
        let ended = tasks.spawn("obedient", async move { task.stopping().await });

        assert!(tasks.finish(Duration::from_secs(5)).await);
        assert!(ended.is_finished());
    }

    #[tokio::test]
    async fn finish_does_not_wait_for_ever() {
        let tasks = Tasks::new();
        tasks.spawn("stubborn", std::future::pending::<()>());

        assert!(!tasks.finish(Duration::from_millis(20)).await);
    }

    #[tokio::test]
    async fn a_panic_of_a_vital_task_stops_the_rest() {
        let tasks = Tasks::new();
        tasks.spawn_vital("vital", async { panic!("as the test wants") });

        tasks.stopping().await;

        assert!(tasks.is_stopping());
    }

    #[tokio::test]
    async fn a_panic_of_another_task_stops_nothing() {
        let tasks = Tasks::new();

        let ended = tasks.spawn("fragile", async { panic!("as the test wants") });

        assert!(ended.await.is_err());
        assert!(!tasks.is_stopping());
    }
}
