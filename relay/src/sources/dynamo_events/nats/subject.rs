//! Subjects by which Dynamo's endpoints publish on NATS.

use std::fmt::Write as _;

use crate::discovery::Scope;

/// What stands for any one part of a subject.
const ANY: &str = "*";

/// The subjects by which all of a scope's endpoints publish on a topic; sites before Dynamo 1.5
/// name no endpoint.
pub(super) fn of_scope(scope: &Scope, topic: &str) -> [String; 2] {
    let part = |name: Option<&String>| name.map_or_else(|| ANY.to_owned(), |name| encoded(name));
    let namespace = encoded(&scope.namespace);
    let component = part(scope.component.as_ref());
    let endpoint = part(scope.endpoint.as_ref());
    [
        format!("namespace.{namespace}.component.{component}.endpoint.{endpoint}.{topic}"),
        format!("namespace.{namespace}.component.{component}.{topic}"),
    ]
}

/// Whether all that is published by `subject` is heard by who is subscribed to `wide`.
pub(super) fn covers(wide: &str, subject: &str) -> bool {
    let (mut all, mut parts) = (wide.split('.'), subject.split('.'));
    loop {
        match (all.next(), parts.next()) {
            (None, None) => return true,
            (Some(wide), Some(part)) if wide == ANY || wide == part => {}
            _ => return false,
        }
    }
}

/// A name as one part of a subject, as Dynamo writes it.
fn encoded(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            encoded.push(char::from(byte));
        } else {
            // A text takes all that is written into it.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scopes_subjects_name_what_it_names() {
        let mut scope = Scope {
            namespace: "a.b".into(),
            component: None,
            endpoint: None,
        };

        let any = of_scope(&scope, "kv-events");
        scope.component = Some("backend".into());
        scope.endpoint = Some("generate".into());
        let [named, _] = of_scope(&scope, "kv-events");

        assert_eq!(
            any,
            [
                "namespace.a%2Eb.component.*.endpoint.*.kv-events",
                "namespace.a%2Eb.component.*.kv-events",
            ]
        );
        assert_eq!(
            named,
            "namespace.a%2Eb.component.backend.endpoint.generate.kv-events"
        );
    }

    #[test]
    fn a_star_covers_one_part() {
        let wide = "namespace.n.component.*.endpoint.*.t";

        assert!(covers(wide, "namespace.n.component.c.endpoint.e.t"));
        assert!(covers(wide, wide));
        assert!(!covers(wide, "namespace.m.component.c.endpoint.e.t"));
        assert!(!covers(wide, "namespace.n.component.c.endpoint.e.f.t"));
        assert!(!covers(wide, "namespace.n.component.c.t"));
    }
}
