//! The directory that `kvgrid-certs` keeps: the authority, the grid's key and the leaves.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::authority::{AuthorityError, CertAuthority, Validity};
use crate::files::{self, FileError, NewFile, Overwrite, Readers};
use crate::grid_key::{GridKeyError, generate_grid_key};
use crate::identity::{Identity, TrustDomain};

const CA: &str = "ca.pem";
const CA_KEY: &str = "ca-key.pem";
const GRID_KEY: &str = "grid.key";

/// Why a directory cannot be made or used. Files that were there stay as they were.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The authority in the directory cannot be used.
    #[error("{path}: {error}")]
    Authority {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        error: AuthorityError,
    },
    /// There is no grid key to write.
    #[error(transparent)]
    GridKey(#[from] GridKeyError),
    /// A leaf's files would take the name of another's.
    #[error("a node cannot be named {0:?} here: {0}.pem would be another file's name")]
    Name(String),
}

/// Where a leaf was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafPaths {
    /// The node's certificate.
    pub cert: PathBuf,
    /// The node's private key.
    pub key: PathBuf,
}

/// Makes an authority and a grid key in `dir`, which is made if it is not there.
pub fn init(
    dir: &Path,
    trust_domain: TrustDomain,
    overwrite: Overwrite,
) -> Result<CertAuthority, DirectoryError> {
    files::make_directory(dir)?;
    let authority = CertAuthority::generate(trust_domain).map_err(|e| in_directory(dir, e))?;
    let key_pem = authority.key_pem();
    let grid_key = generate_grid_key()?;
    let files = [
        new_file(dir, CA_KEY, key_pem.as_bytes(), Readers::Owner),
        new_file(dir, GRID_KEY, &grid_key, Readers::Owner),
        new_file(
            dir,
            CA,
            authority.certificate_pem().as_bytes(),
            Readers::Everyone,
        ),
    ];
    files::write_all(&files, overwrite)?;
    Ok(authority)
}

/// Takes up the authority in `dir`.
pub fn open_authority(dir: &Path) -> Result<CertAuthority, DirectoryError> {
    let text =
        |name| files::read(&dir.join(name)).map(|t| String::from_utf8_lossy(&t).into_owned());
    CertAuthority::from_pem(&text(CA)?, &text(CA_KEY)?).map_err(|e| in_directory(dir, e))
}

/// Certifies a node with the authority in `dir`, and writes its files there.
pub fn issue(
    dir: &Path,
    identity: &Identity,
    validity: Validity,
    overwrite: Overwrite,
) -> Result<LeafPaths, DirectoryError> {
    let name = identity.name();
    if name == "ca" || name.ends_with("-key") {
        return Err(DirectoryError::Name(name.to_owned()));
    }
    let leaf = open_authority(dir)?
        .issue(identity, validity)
        .map_err(|e| in_directory(dir, e))?;
    let cert_name = format!("{name}.pem");
    let key_name = format!("{name}-key.pem");
    let files = [
        new_file(dir, &key_name, leaf.key_pem.as_bytes(), Readers::Owner),
        new_file(
            dir,
            &cert_name,
            leaf.certificate_pem.as_bytes(),
            Readers::Everyone,
        ),
    ];
    files::write_all(&files, overwrite)?;
    Ok(LeafPaths {
        cert: dir.join(cert_name),
        key: dir.join(key_name),
    })
}

fn new_file<'a>(dir: &Path, name: &str, content: &'a [u8], readers: Readers) -> NewFile<'a> {
    NewFile {
        path: dir.join(name),
        content,
        readers,
    }
}

fn in_directory(dir: &Path, error: AuthorityError) -> DirectoryError {
    DirectoryError::Authority {
        path: dir.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::credentials::{IdentityFiles, NodeCredentials};
    use crate::grid_key::read_grid_key;

    fn grid() -> TrustDomain {
        TrustDomain::new("grid.example").unwrap()
    }

    fn edge(name: &str) -> Identity {
        format!("spiffe://grid.example/region/eu/edge/{name}")
            .parse()
            .unwrap()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_gives_a_node_all_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/on/the/way");
        init(&dir, grid(), Overwrite::Refuse).unwrap();
        let day = Validity::days(1).unwrap();
        let paths = issue(&dir, &edge("eu-1"), day, Overwrite::Refuse).unwrap();

        let credentials = NodeCredentials::load(&IdentityFiles {
            cert: paths.cert,
            key: paths.key,
            ca: dir.join("ca.pem"),
        })
        .unwrap();

        assert_eq!(credentials.identity(), edge("eu-1"));
        read_grid_key(&dir.join("grid.key")).unwrap();
    }

    #[test]
    fn keys_are_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), grid(), Overwrite::Refuse).unwrap();
        let day = Validity::days(1).unwrap();
        let paths = issue(dir.path(), &edge("eu-1"), day, Overwrite::Refuse).unwrap();

        for key in [
            dir.path().join("ca-key.pem"),
            dir.path().join("grid.key"),
            paths.key,
        ] {
            assert_eq!(mode(&key), 0o600, "{}", key.display());
        }
    }

    #[test]
    fn nothing_is_replaced_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), grid(), Overwrite::Refuse).unwrap();
        let before = std::fs::read(dir.path().join("grid.key")).unwrap();

        let refused = init(dir.path(), grid(), Overwrite::Refuse).unwrap_err();

        assert!(refused.to_string().ends_with("exists; --force replaces it"));
        assert_eq!(std::fs::read(dir.path().join("grid.key")).unwrap(), before);
        init(dir.path(), grid(), Overwrite::Force).unwrap();
        assert_ne!(std::fs::read(dir.path().join("grid.key")).unwrap(), before);
    }

    #[test]
    fn a_leaf_cannot_take_another_files_name() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), grid(), Overwrite::Refuse).unwrap();

        for name in ["ca", "ca-key", "eu-1-key"] {
            let day = Validity::days(1).unwrap();
            let error = issue(dir.path(), &edge(name), day, Overwrite::Force).unwrap_err();
            assert!(matches!(error, DirectoryError::Name(_)), "{name}");
        }
    }

    #[test]
    fn a_directory_without_an_authority_says_which_file_is_missing() {
        let dir = tempfile::tempdir().unwrap();

        let error = open_authority(dir.path()).unwrap_err().to_string();

        assert!(error.contains("ca.pem cannot be read"), "{error}");
    }
}
