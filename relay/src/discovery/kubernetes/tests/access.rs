//! Who may ask, and who may answer.

use http::StatusCode;

use super::*;

#[tokio::test]
async fn a_refusal_is_named_with_what_is_refused() {
    let server = ApiServer::start(None).await;
    serve(&server, &["a"]);
    let message = "endpointslices.discovery.k8s.io is forbidden: User \"relay\" cannot list";
    server.contents().refusal = Some((SLICES, StatusCode::FORBIDDEN, message));
    let settings = settings(&server);

    let mut rig = Rig::start(server, settings);
    rig.until(|rig| rig.lost.is_some()).await;
    let (address, lost) = (rig.server.address, rig.lost.clone());
    let nothing = rig.entries.is_empty();
    rig.server.contents().refusal = None;
    rig.until_served(&["a"]).await;

    let expected = format!("http://{address}: endpointslices in default: 403 Forbidden: {message}");
    assert_eq!(lost, Some(expected));
    assert!(nothing, "half of it is nothing");
}

#[tokio::test]
async fn a_token_is_read_anew_when_it_has_been_replaced() {
    let server = ApiServer::start(None).await;
    serve(&server, &["a"]);
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "first\n").unwrap();
    server.contents().token = Some("first".into());
    let mut settings = settings(&server);
    settings.token = Some(Secret::File(token.path().to_owned()));

    let mut rig = Rig::start(server, settings);
    rig.until_served(&["a"]).await;
    rig.server.watched(WORKERS, 1).await;
    rig.server.contents().token = Some("second".into());
    rig.server.end(WORKERS);
    rig.until(|rig| rig.lost.is_some()).await;
    let lost = rig.lost.clone().unwrap();
    std::fs::write(token.path(), "second\n").unwrap();
    rig.until(|rig| rig.lost.is_none()).await;

    assert!(lost.ends_with("401 Unauthorized: Unauthorized"), "{lost}");
    assert!(!lost.contains("first"), "{lost}");
}

#[tokio::test]
async fn a_token_that_is_not_there_is_named_by_its_place() {
    let server = ApiServer::start(None).await;
    let mut settings = settings(&server);
    settings.token = Some(Secret::File("/nowhere/token".into()));

    let mut rig = Rig::start(server, settings);
    rig.until(|rig| rig.lost.is_some()).await;

    let lost = rig.lost.clone().unwrap();
    assert!(lost.contains("/nowhere/token: "), "{lost}");
    assert!(rig.server.contents().seen.is_empty());
}

/// The rights that the example gives are those that are needed, and no more.
#[test]
fn the_example_of_rights_is_right() {
    let example = include_str!("../../../../../compose/kubernetes/rbac.yaml");
    let given = example.matches("\n  - apiGroups: ").count();
    // The last one takes another's place, and is commented out.
    let all = example
        .replace("  # - apiGroups: ", "  - apiGroups: ")
        .replace("\n  #   ", "\n    ");
    let rules: Vec<_> = all.split("  - apiGroups: ").skip(1).collect();
    let settings = |mode| KubernetesSettings {
        url: String::new(),
        tls: None,
        token: None,
        namespace: String::new(),
        mode,
        selector: String::new(),
        stale_after: Duration::ZERO,
    };
    let of = |collection: Collection| {
        let group = match collection.api.split('/').collect::<Vec<_>>()[..] {
            ["apis", group, _] => group,
            _ => "",
        };
        format!(
            "[{group:?}]\n    resources: [{:?}]\n    verbs: [\"list\", \"watch\"]\n",
            collection.plural
        )
    };
    let pods = settings(KubernetesMode::Pod);
    let containers = settings(KubernetesMode::Container);

    let needed = [pods.workers(), pods.readiness(), containers.readiness()].map(of);

    assert_eq!((given, rules.len()), (2, needed.len()));
    for (rule, needed) in rules.iter().zip(needed) {
        assert!(rule.starts_with(&needed), "{rule}: {needed}");
    }
}
