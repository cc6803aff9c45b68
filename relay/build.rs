//! Compiles the protocol of Dynamo's own relay without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/kvrelay.proto");
    let descriptors = protox::compile(["proto/kvrelay.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}
