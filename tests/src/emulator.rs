//! An emulated site: an OpenAI-compatible HTTP server, engine-style KV events and a metrics
//! page around the site model of `kvgrid-sim`.
//!
//! It has no weights and takes no GPU, but its cache, queue and timing behave like an
//! engine's, and `usage.prompt_tokens_details.cached_tokens` says truly what was cached.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvgrid_runtime::Tasks;
use kvgrid_runtime::http::{HttpLimits, listen, serve};
use tower::service_fn;

use crate::node::{Addresses, Daemon};

mod answer;
mod api;
mod config;
mod engine;
mod events;
mod fault;
mod metrics;
mod prompt;
mod publisher;
mod question;
mod vocabulary;

pub use config::{EmulatorConfig, EngineConfig, EventsConfig};
pub use events::{EngineEvent, EventForm, encode};
pub use fault::{Fault, FaultKind, Faults};
pub use vocabulary::Vocabulary;

use api::Site;
use engine::Engine;
use prompt::Prompter;
use publisher::Publisher;

/// Whatever a benchmark opens; idle connections stay open, as a real server's do.
const LIMITS: HttpLimits = HttpLimits {
    connections: 8_192,
    head_timeout: Duration::from_secs(3_600),
};

/// A running emulated site. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Emulator {
    addresses: Addresses,
    faults: Faults,
    tasks: Tasks,
}

impl Emulator {
    /// Binds the sockets and serves from now on.
    pub async fn start(config: &EmulatorConfig) -> anyhow::Result<Self> {
        let prompter = match &config.model_dir {
            Some(dir) => Prompter::load(dir, &config.model, config.engine.block_size)?,
            None => Prompter::without_model(),
        };
        let faults = Faults::default();
        let mut emulator = Self {
            addresses: Addresses::new(),
            faults: faults.clone(),
            tasks: Tasks::new(),
        };
        let publisher = emulator.publish(config).await?;
        let (engine, driver) = Engine::new(
            config.engine.site(prompter.vocabulary().ids().collect()),
            publisher,
        );
        emulator.spawn("engine", driver);
        let site = Arc::new(Site {
            model: config.model.clone(),
            block_size: config.engine.block_size.get(),
            max_tokens: config.engine.max_tokens,
            engine,
            prompter: Arc::new(prompter),
            faults,
        });
        let listener = listen(config.listen)?;
        emulator
            .addresses
            .insert("http".into(), listener.local_addr()?);
        let service = service_fn(move |request| site.clone().serve(request));
        let tasks = emulator.tasks.clone();
        emulator.spawn("http", serve(listener, LIMITS, tasks, service));
        Ok(emulator)
    }

    /// Where clients go.
    pub fn http(&self) -> SocketAddr {
        self.addresses["http"]
    }

    /// Failures on demand.
    pub const fn faults(&self) -> &Faults {
        &self.faults
    }

    async fn publish(&mut self, config: &EmulatorConfig) -> anyhow::Result<Option<Publisher>> {
        if !config.events.enabled {
            return Ok(None);
        }
        let block_size = config.engine.block_size.get();
        let (publisher, bound, replay) = Publisher::bind(&config.events, block_size).await?;
        self.addresses.insert("publish".into(), bound.publish);
        self.addresses.insert("replay".into(), bound.replay);
        self.spawn("replay", replay);
        Ok(Some(publisher))
    }

    fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.tasks.token().clone();
        self.tasks.spawn(name, async move {
            token.run_until_cancelled(task).await;
        });
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

impl Daemon for Emulator {
    type Config = EmulatorConfig;
    const NAME: &'static str = "kvgrid-emulator";
    const ABOUT: &'static str = "An emulated inference site";

    fn ready_file(config: &EmulatorConfig) -> Option<PathBuf> {
        config.ready_file.clone()
    }

    async fn start(config: EmulatorConfig) -> anyhow::Result<Self> {
        Self::start(&config).await
    }

    /// `http`, `publish` and `replay`.
    fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }
}
