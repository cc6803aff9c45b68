//! A relay on a node of a group whose leader alone has a frontend.
//!
//! Engines over several nodes answer on one of them, and the others are the same pod but for
//! their number. A relay there tells nobody anything and takes no requests: it would be the
//! same site's, without a frontend. It answers whoever asks for its health, as ready as it can
//! be, so that it keeps no group from being complete.

use std::collections::BTreeMap;

use kvgrid_runtime::admin::{Admin, Health};
use kvgrid_runtime::http::listen;
use kvgrid_runtime::{ReadyFile, Tasks, Termination};
use prometheus_client::registry::Registry;
use tracing::info;

use super::RunError;
use crate::config::Config;

/// Stands by until the relay is told to stop.
pub(super) async fn until_stopped(
    config: &Config,
    termination: &mut Termination,
    tasks: &Tasks,
) -> Result<(), RunError> {
    let listener = listen(config.admin)?;
    let at = listener.local_addr()?;
    let registry = Registry::with_prefix("kvgrid_relay");
    let admin = Admin::new(Health::new(|| Ok(())), registry.into());
    tasks.spawn_vital("admin server", admin.serve(listener, tasks.clone()));
    info!(admin = %at, "Relay stands by: its group's leader has the frontend");
    let bound = BTreeMap::from([("admin", at)]);
    let written = config.file.admin.ready_file.as_ref().map(|path| {
        ReadyFile::write(path, &bound).map_err(|error| RunError::ReadyFile {
            path: path.clone(),
            error,
        })
    });
    let written = written.transpose()?;
    termination.next().await;
    let broken = tasks.is_stopping();
    tasks.stop();
    drop(written);
    info!("Stopped");
    if broken {
        Err(RunError::Broken)
    } else {
        Ok(())
    }
}
