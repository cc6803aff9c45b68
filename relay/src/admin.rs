//! What the relay's admin server says of its health.

use kvgrid_runtime::admin::Health;
use tokio::sync::watch;

use crate::frontend::Served;
use crate::pools::PoolReport;

/// A relay is ready when its frontend answers and every feed has found out whether there is a
/// publisher. Edges don't ask: they see the models' readiness and the pools' completeness.
pub(crate) fn health(
    served: watch::Receiver<Served>,
    pools: watch::Receiver<Vec<PoolReport>>,
) -> Health {
    Health::new(move || {
        if !served.borrow().reachable {
            return Err("the frontend does not answer".to_owned());
        }
        let pools = pools.borrow();
        match pools.iter().find(|pool| pool.connecting() > 0) {
            None => Ok(()),
            Some(pool) => Err(format!(
                "source {} has {} publishers yet to be reached",
                pool.source,
                pool.connecting()
            )),
        }
    })
}
