//! How a site's processes are started.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::meeting::Meeting;
use super::options::{KvSource, Release, SiteOptions};
use super::site::{Ports, WorkerPorts};
use crate::harness::MODEL;

/// What a worker is among its site's.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerKind {
    pub(super) component: &'static str,
    pub(super) block_size: NonZeroU32,
    /// Which part of requests it does; all of it if absent.
    pub(super) mode: Option<&'static str>,
}

impl WorkerKind {
    /// The usual worker.
    pub(super) const fn usual(options: &SiteOptions) -> Self {
        Self {
            component: "backend",
            block_size: options.block_size,
            mode: match options.prefill_workers {
                0 => None,
                _ => Some("decode"),
            },
        }
    }

    /// One that computes prompts for others.
    pub(super) const fn prefill(options: &SiteOptions) -> Self {
        Self {
            component: "prefill",
            block_size: options.block_size,
            mode: Some("prefill"),
        }
    }
}

pub(super) fn worker_arguments(
    options: &SiteOptions,
    kind: WorkerKind,
    model: &Path,
    ports: WorkerPorts,
) -> Vec<String> {
    let model_path = model.display().to_string();
    let raw_events = match options.source {
        KvSource::EngineZmq => vec![
            ("--zmq-kv-events-ports", ports.events.to_string()),
            ("--zmq-replay-ports", ports.replay.to_string()),
        ],
        KvSource::DynamoEvents
        | KvSource::DynamoNats
        | KvSource::DynamoKubernetes
        | KvSource::DynamoRelay => Vec::new(),
    };
    // This one would have another package ask the model for it.
    let bytes = match options.release {
        Release::Current => None,
        Release::Older => Some(("--kv-bytes-per-token", "1".to_owned())),
    };
    let mode = kind.mode;
    let mode = mode.map(|mode| ("--disaggregation-mode", mode.to_owned()));
    let host =
        (options.host_blocks > 0).then(|| ("--num-host-blocks", options.host_blocks.to_string()));
    let requests = options.max_requests;
    let requests = requests.map(|requests| ("--max-num-seqs", requests.to_string()));
    [
        ("--model-path", model_path),
        ("--model-name", MODEL.to_owned()),
        (
            "--endpoint",
            format!("dyn://{}.{}.generate", options.name, kind.component),
        ),
        ("--block-size", kind.block_size.to_string()),
        ("--num-gpu-blocks-override", options.blocks.to_string()),
        ("--speedup-ratio", options.speedup.to_string()),
        ("--data-parallel-size", options.ranks.to_string()),
    ]
    .into_iter()
    .chain(raw_events)
    .chain(bytes)
    .chain(host)
    .chain(requests)
    .chain(mode)
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect()
}

pub(super) fn frontend_arguments(options: &SiteOptions, port: u16) -> Vec<String> {
    [
        ("--http-host", "127.0.0.1".to_owned()),
        ("--http-port", port.to_string()),
        ("--router-mode", "kv".to_owned()),
        ("--namespace", options.name.clone()),
    ]
    .into_iter()
    .flat_map(|(flag, value)| [flag.to_owned(), value])
    .collect()
}

/// Of Dynamo's own relay.
pub(super) fn peer_arguments(options: &SiteOptions, ports: &Ports) -> Vec<String> {
    let bind = format!("127.0.0.1:{}", ports.peer);
    let watch = "--watch-all".to_owned();
    let dc = ["--dc-id".to_owned(), options.name.clone()];
    dc.into_iter()
        .chain([watch, "--bind".to_owned(), bind])
        .collect()
}

/// Where a site's processes register themselves.
pub(super) fn discovery(directory: &TempDir) -> PathBuf {
    directory.path().join("discovery")
}

/// What both processes of a site see: its own home and discovery, and the loopback only.
pub(super) fn environment(
    options: &SiteOptions,
    directory: &TempDir,
    meeting: &Meeting,
) -> Vec<(&'static str, String)> {
    let home = directory.path().display().to_string();
    let usual = [
        ("HOME", home.as_str()),
        ("DYN_NAMESPACE", options.name.as_str()),
        ("DYN_REQUEST_PLANE", "tcp"),
        ("DYN_TCP_RPC_HOST", "127.0.0.1"),
        ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
        ("DYN_SYSTEM_HOST", "127.0.0.1"),
        ("DYN_SYSTEM_STARTING_HEALTH_STATUS", "ready"),
        ("DYN_SDK_DISABLE_ANSI_LOGGING", "1"),
        ("DYN_LOG", "info"),
        ("HF_HUB_OFFLINE", "1"),
        ("PYTHONUNBUFFERED", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ];
    let usual = usual.map(|(key, value)| (key, value.to_owned()));
    let meet = meeting.environment(directory);
    usual.into_iter().chain(meet).collect()
}
