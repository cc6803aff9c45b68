//! `kvgrid-certs`: makes a grid's authority, its key and its nodes' certificates.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use kvgrid_certs::{Identity, Overwrite, TrustDomain, Validity};
use kvgrid_core::{EdgeId, Region, RelayId, SiteId};

/// The command line was wrong (EX_USAGE).
const EXIT_USAGE: u8 = 64;

/// Makes a grid's certificate authority, its key and its nodes' certificates.
#[derive(Parser)]
#[command(name = "kvgrid-certs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make an authority (ca.pem, ca-key.pem) and a grid key (grid.key).
    Init {
        /// Where to; it is made if it is not there.
        dir: PathBuf,
        /// The grid's name, for example grid.example.
        #[arg(long, value_parser = TrustDomain::new)]
        trust_domain: TrustDomain,
        /// Replace an authority that is there: its nodes' certificates are then worth nothing.
        #[arg(long)]
        force: bool,
    },
    /// Certify a node: write NAME.pem and NAME-key.pem.
    Issue {
        /// The directory that `init` made.
        dir: PathBuf,
        #[command(subcommand)]
        node: Node,
    },
    /// Show what the certificates in a PEM file say.
    Inspect {
        /// The file.
        file: PathBuf,
    },
}

#[derive(Subcommand)]
enum Node {
    /// The sidecar beside a site's frontend.
    Relay {
        /// The site it speaks for.
        #[arg(long, value_parser = SiteId::new)]
        site: SiteId,
        /// Its own name, unique in the grid.
        #[arg(long, value_parser = RelayId::new)]
        id: RelayId,
        /// Where the site is.
        #[arg(long, value_parser = Region::new)]
        region: Option<Region>,
        #[command(flatten)]
        rest: Leaf,
    },
    /// The router in a region.
    Edge {
        /// The region it serves.
        #[arg(long, value_parser = Region::new)]
        region: Region,
        /// Its own name, unique in the grid.
        #[arg(long, value_parser = EdgeId::new)]
        id: EdgeId,
        #[command(flatten)]
        rest: Leaf,
    },
}

#[derive(Args)]
struct Leaf {
    /// A label, such as country=de; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// How long the certificate holds.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    /// Replace the node's certificate and key.
    #[arg(long)]
    force: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    match run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kvgrid-certs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `--help` and `--version` are answers; everything else is a fault of the command line.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() {
        ExitCode::from(EXIT_USAGE)
    } else {
        ExitCode::SUCCESS
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Init {
            dir,
            trust_domain,
            force,
        } => {
            kvgrid_certs::init(&dir, trust_domain, overwrite(force))?;
            tell(&format!("authority and grid key are in {}", dir.display()))
        }
        Command::Issue { dir, node } => issue(&dir, node),
        Command::Inspect { file } => {
            let certificates = kvgrid_certs::inspect_file(&file)?;
            let texts: Vec<String> = certificates.iter().map(ToString::to_string).collect();
            tell(&texts.join("\n\n"))
        }
    }
}

fn issue(dir: &Path, node: Node) -> anyhow::Result<()> {
    let authority = kvgrid_certs::open_authority(dir)?;
    let domain = authority.trust_domain().clone();
    let (mut identity, leaf) = match node {
        Node::Relay {
            site,
            id,
            region,
            rest,
        } => {
            let relay = Identity::relay(domain, site, id);
            let relay = match region {
                Some(region) => relay.with_region(region),
                None => relay,
            };
            (relay, rest)
        }
        Node::Edge { region, id, rest } => (Identity::edge(domain, region, id), rest),
    };
    for (key, value) in &leaf.labels {
        identity = identity
            .with_label(key, value)
            .with_context(|| format!("--label {key}={value}"))?;
    }
    let validity = Validity::days(leaf.days)?;
    let paths = kvgrid_certs::issue(dir, &identity, validity, overwrite(leaf.force))?;
    tell(&format!(
        "{identity}\n{} and {}",
        paths.cert.display(),
        paths.key.display()
    ))
}

fn overwrite(force: bool) -> Overwrite {
    if force {
        Overwrite::Force
    } else {
        Overwrite::Refuse
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err("a label is written KEY=VALUE".into()),
    }
}

fn tell(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("standard output")
}
