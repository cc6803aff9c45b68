//! A site behind a NAT, an edge outside of it, and the NAT between them, each in a network
//! namespace of its own. The machine's own network is not touched.
//!
//! ```text
//! edge 10.77.2.2 --- 10.77.2.1 nat 10.77.1.1 --- 10.77.1.2 site
//! ```
//!
//! Needs root, iproute2, and nftables or iptables; a test that can't have them is skipped. A
//! test runs in the edge's namespace as a process of its own, so that it reaches the edge as
//! any client on the edge's machine does.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::time::{Instant, sleep};

use crate::harness::{self, process};
use crate::lock;
use crate::skip::skip;

/// Where the edge is.
pub const EDGE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 2, 2));
/// The NAT's outer address: what the edge sees of the site.
pub const NAT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 2, 1));
/// Where the site is, as only the site and the NAT know.
pub const SITE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 1, 2));

/// Names the site's namespace to a test that runs in the edge's.
const SITE_VARIABLE: &str = "KVGRID_TEST_SITE_NETNS";
/// How long a test may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// Where the caller runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// In the edge's namespace: here the test goes on. The site's namespace has this name.
    AtEdge {
        /// The name.
        site: String,
    },
    /// Outside: the test was run in the edge's namespace and has passed, or it was skipped.
    Done,
}

/// Runs the test of this name again in the edge's namespace, or says that this is done.
pub async fn behind_nat(test: &str) -> Result<Placed> {
    if let Some(site) = std::env::var_os(SITE_VARIABLE) {
        harness::hold_leash();
        let site = site.to_string_lossy().into_owned();
        return Ok(Placed::AtEdge { site });
    }
    let _machine = lock::machine()?;
    match Namespaces::new() {
        Ok(namespaces) => namespaces.run(test).await?,
        Err(error) => skip(test, &format!("{error:#}")),
    }
    Ok(Placed::Done)
}

/// The three namespaces. They go when it is dropped, and all that is in them.
struct Namespaces {
    site: String,
    nat: String,
    edge: String,
}

impl Namespaces {
    fn new() -> Result<Self> {
        let name = |what: &str| format!("kvgrid-{}-{what}", std::process::id());
        // From here on dropping it cleans up, how far ever it has come.
        let made = Self {
            site: name("site"),
            nat: name("nat"),
            edge: name("edge"),
        };
        let Self { site, nat, edge } = &made;
        for namespace in [site, nat, edge] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        join((site, "eth0", SITE), (nat, "lan", "10.77.1.1"))?;
        join((nat, "wan", NAT), (edge, "eth0", EDGE))?;
        ip(&format!("-n {site} route add default via 10.77.1.1"))?;
        made.translate()?;
        Ok(made)
    }

    /// Makes the one in the middle a NAT, which passes on only what the site has asked for.
    fn translate(&self) -> Result<()> {
        let within = |command: &str| {
            let enter = ["netns", "exec", &self.nat, "sh", "-c", command];
            run("ip", enter.map(OsStr::new))
        };
        within("echo 1 > /proc/sys/net/ipv4/ip_forward")?;
        let nftables = "nft add table ip nat \
            && nft 'add chain ip nat out { type nat hook postrouting priority 100; }' \
            && nft add rule ip nat out oifname wan masquerade \
            && nft 'add chain ip nat through { type filter hook forward priority 0; }' \
            && nft add rule ip nat through iifname wan ct state new drop";
        let iptables = "iptables -t nat -A POSTROUTING -o wan -j MASQUERADE \
            && iptables -A FORWARD -i wan -m conntrack --ctstate NEW -j DROP";
        within(nftables).or_else(|error| {
            within(iptables).with_context(|| format!("no nftables either: {error:#}"))
        })
    }

    /// Runs a test of this program in the edge's namespace.
    async fn run(&self, test: &str) -> Result<()> {
        let program = std::env::current_exe()?;
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.edge])
            .arg(program)
            .args(["--exact", test, "--nocapture"])
            .env(SITE_VARIABLE, &self.site)
            .env(process::LEASH, "1")
            .stdin(Stdio::piped())
            .spawn()?;
        let ended = until_ended(&mut child).await;
        // Both fail only for a process that has ended already.
        let _ = child.kill();
        let _ = child.wait();
        match ended? {
            true => Ok(()),
            false => bail!("{test} has failed in its namespace, as shown above"),
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.site, &self.nat, &self.edge] {
            // It may not have been made.
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

/// Whether a process has ended well.
async fn until_ended(child: &mut Child) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > deadline {
            bail!("the test does not end within {PATIENCE:?}");
        }
        sleep(process::POLL).await;
    }
}

type End<'a, A> = (&'a str, &'a str, A);

/// Puts a wire between two namespaces.
fn join(a: End<'_, impl ToString>, b: End<'_, impl ToString>) -> Result<()> {
    let ((at, device, address), (to, peer, peer_address)) = (a, b);
    ip(&format!(
        "-n {at} link add {device} type veth peer name {peer} netns {to}"
    ))?;
    let ends = [
        (at, device, address.to_string()),
        (to, peer, peer_address.to_string()),
    ];
    for (namespace, device, address) in ends {
        ip(&format!(
            "-n {namespace} addr add {address}/24 dev {device}"
        ))?;
        ip(&format!("-n {namespace} link set {device} up"))?;
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    run("ip", arguments.split_whitespace().map(OsStr::new))
}

fn run<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let arguments: Vec<OsString> = arguments.into_iter().map(OsStr::to_owned).collect();
    let output = Command::new(program)
        .args(&arguments)
        .output()
        .with_context(|| format!("{program} can't be run"))?;
    if output.status.success() {
        return Ok(());
    }
    // One line, since reasons of skipped tests are counted by lines.
    let words = String::from_utf8_lossy(&output.stderr);
    let words: Vec<&str> = words.split_whitespace().collect();
    bail!("{program} {arguments:?}: {}", words.join(" "))
}
