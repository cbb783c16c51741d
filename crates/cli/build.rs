//! Links debug builds of the command and of its tests without position independence. Otherwise each has 200,000 relative
//! relocations, which the dynamic linker works through at every start: in an emulated guest 20 ms, in simulated time with delays 0.1 s.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|it| it == value);
    if is("PROFILE", "debug")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
}
