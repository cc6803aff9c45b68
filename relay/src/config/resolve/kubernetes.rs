//! Discovery in Kubernetes: what isn't written is what a pod is given by its cluster.

use std::path::PathBuf;
use std::{env, fs};

use kvgrid_runtime::config::ConfigError;

use super::dynamo::{STALE_AFTER, scheme, tls};
use super::{not_shorter, wrong};
use crate::config::{DiscoveryTable, TlsTable};
use crate::discovery::KubernetesSettings;
use crate::secret::Secret;

/// Where a pod finds who it is.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Dynamo's own. It names its discovery's kind as well, but the labels that its client names
/// last are the only ones that it asks for.
const SELECTOR: &str = "nvidia.com/dynamo-discovery-enabled=true";

/// Most characters of a namespace's name, as of each label in DNS.
const NAMESPACE_CHARS: usize = 63;

/// What a pod is given by its cluster.
pub(super) struct InCluster {
    host: Option<String>,
    port: Option<String>,
    account: PathBuf,
}

impl InCluster {
    /// What this process is given, if it runs in a pod.
    pub(super) fn here() -> Self {
        Self {
            host: env::var("KUBERNETES_SERVICE_HOST").ok(),
            port: env::var("KUBERNETES_SERVICE_PORT").ok(),
            account: ACCOUNT.into(),
        }
    }

    fn url(&self) -> Option<String> {
        let (host, port) = (self.host.as_ref()?, self.port.as_ref()?);
        Some(match host.contains(':') {
            true => format!("https://[{host}]:{port}"),
            false => format!("https://{host}:{port}"),
        })
    }
}

/// Takes the table's word for it, and writes down what was left out.
pub(super) fn resolve(
    table: &mut DiscoveryTable,
    given: &InCluster,
) -> Result<KubernetesSettings, ConfigError> {
    let key = "source.discovery.url";
    table.url = table.url.take().or_else(|| given.url());
    let url = table.url.clone().ok_or_else(|| {
        let reason =
            "is missing, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT aren't set";
        wrong(key, reason)
    })?;
    match scheme(key, &url, ["https", "http"])? {
        "https" => {
            table.tls.get_or_insert_with(|| TlsTable {
                ca: given.account.join("ca.crt"),
                cert: None,
                key: None,
            });
            // Who shows a certificate is known by that.
            if table.tls.as_ref().is_some_and(|tls| tls.cert.is_none()) {
                let token = || Secret::File(given.account.join("token"));
                table.token.get_or_insert_with(token);
            }
        }
        _ if table.tls.is_some() => {
            let reason = "is there, but source.discovery.url is not https";
            return Err(wrong("source.discovery.tls", reason));
        }
        _ => {}
    }
    let stale_after = *table.stale_after.get_or_insert(STALE_AFTER);
    not_shorter("source.discovery.stale_after", stale_after)?;
    let selector = table.selector.get_or_insert_with(|| SELECTOR.to_owned());
    Ok(KubernetesSettings {
        url,
        tls: tls("source.discovery.tls", table.tls.as_ref())?,
        token: table.token.clone(),
        selector: selector.clone(),
        mode: *table.mode.get_or_insert_default(),
        stale_after,
        namespace: namespace(table, given)?,
    })
}

fn namespace(table: &mut DiscoveryTable, given: &InCluster) -> Result<String, ConfigError> {
    let key = "source.discovery.namespace";
    let namespace = match table.namespace.take() {
        Some(namespace) => namespace,
        None => {
            let path = given.account.join("namespace");
            let read = fs::read_to_string(&path);
            let missing = |error| format!("is missing, and {}: {error}", path.display());
            let read = read.map_err(|error| wrong(key, missing(error)))?;
            read.trim().to_owned()
        }
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=NAMESPACE_CHARS).contains(&namespace.len()) || !namespace.bytes().all(is_plain) {
        let reason = format!("{namespace:?} is not the name of a namespace");
        return Err(wrong(key, reason));
    }
    table.namespace = Some(namespace.clone());
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::discovery::KubernetesMode;

    fn table(keys: &str) -> DiscoveryTable {
        toml::from_str(&format!("kind = \"kubernetes\"\n{keys}")).unwrap()
    }

    fn nowhere() -> InCluster {
        InCluster {
            host: None,
            port: None,
            account: "/nowhere".into(),
        }
    }

    fn pod(account: &Path) -> InCluster {
        fs::write(account.join("namespace"), "prod\n").unwrap();
        InCluster {
            host: Some("fd00::1".into()),
            port: Some("443".into()),
            account: account.to_owned(),
        }
    }

    #[track_caller]
    fn assert_refused(keys: &str, sentence: &str) {
        let error = resolve(&mut table(keys), &nowhere()).unwrap_err();
        assert!(error.to_string().contains(sentence), "{error}");
    }

    #[test]
    fn a_pod_needs_to_be_told_nothing() {
        let account = tempfile::tempdir().unwrap();
        let mut table = table("");

        let settings = resolve(&mut table, &pod(account.path())).unwrap();

        assert_eq!(settings.url, "https://[fd00::1]:443");
        assert_eq!(settings.namespace, "prod");
        assert_eq!(settings.mode, KubernetesMode::Pod);
        assert_eq!(settings.tls.unwrap().ca, account.path().join("ca.crt"));
        let token = Secret::File(account.path().join("token"));
        assert_eq!(settings.token, Some(token));
        assert_eq!(table.namespace.as_deref(), Some("prod"), "it is printed");
        assert_eq!(table.selector.as_deref(), Some(SELECTOR), "it is printed");
    }

    #[test]
    fn all_that_a_pod_is_given_may_be_written() {
        let account = tempfile::tempdir().unwrap();
        let mut table = table(
            "url = \"https://api:6443\"\nnamespace = \"test-1\"\nmode = \"container\"\n\
             selector = \"a=b\"\ntoken = { env = \"TOKEN\" }\ntls = { ca = \"/ca\" }\n\
             stale_after = \"1m\"",
        );

        let settings = resolve(&mut table, &pod(account.path())).unwrap();

        assert_eq!(settings.url, "https://api:6443");
        assert_eq!(settings.namespace, "test-1");
        assert_eq!(settings.mode, KubernetesMode::Container);
        assert_eq!(settings.selector, "a=b");
        assert_eq!(settings.token, Some(Secret::Env("TOKEN".into())));
        assert_eq!(settings.tls.unwrap().ca, Path::new("/ca"));
        assert_eq!(settings.stale_after, Duration::from_secs(60));
    }

    #[test]
    fn a_token_is_shown_unasked_to_none_that_is_not_certified() {
        let plain = "url = \"http://api:1\"\nnamespace = \"a\"";
        let certified = "url = \"https://api:1\"\nnamespace = \"a\"\n\
            tls = { ca = \"/ca\", cert = \"/c\", key = \"/k\" }";

        let plain = resolve(&mut table(plain), &nowhere()).unwrap();
        let certified = resolve(&mut table(certified), &nowhere()).unwrap();

        assert_eq!((plain.token, plain.tls), (None, None));
        assert_eq!(certified.token, None);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_by_key() {
        let at = "url = \"https://api:1\"\n";
        assert_refused("", "source.discovery.url: is missing, and KUBERNETES_");
        assert_refused(
            at,
            "source.discovery.namespace: is missing, and /nowhere/namespace",
        );
        for wrong in ["", "A", "a/b", "a?b", &"a".repeat(64)] {
            let sentence = "source.discovery.namespace: ";
            assert_refused(&format!("{at}namespace = \"{wrong}\""), sentence);
        }
        for wrong in ["api:1", "https://api", "https://t@api:1", "https://a:1/x"] {
            let sentence = "source.discovery.url: has one that";
            assert_refused(&format!("url = \"{wrong}\""), sentence);
        }
        assert_refused(
            "url = \"http://api:1\"\ntls = { ca = \"/ca\" }",
            "source.discovery.tls: is there, but",
        );
        assert_refused(
            &format!("{at}namespace = \"a\"\ntls = {{ ca = \"/ca\", key = \"/k\" }}"),
            "source.discovery.tls: has a certificate without",
        );
        assert_refused(
            &format!("{at}namespace = \"a\"\nstale_after = \"0s\""),
            "source.discovery.stale_after: is shorter",
        );
    }
}
