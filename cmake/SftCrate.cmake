# The Rust crate: tokenizers and chat templates for the engine, HTTP for the service. One static library, as a program
# can hold only one of Rust. All build folders share one target folder: its dependencies take a minute to compile.
include_guard(GLOBAL)

set(SFT_CARGO_TARGET_DIR "${SFT_DEPS_DIR}/cargo" CACHE PATH "Where cargo builds the Rust crate")
find_program(SFT_CARGO cargo HINTS "$ENV{HOME}/.cargo/bin")
if(NOT SFT_CARGO)
  message(FATAL_ERROR "no cargo found: run deploy/bootstrap, or give -DSFT_CARGO=PATH")
endif()
set(sft_crate_dir "${CMAKE_SOURCE_DIR}/worker/engine/data/tokenizer")
set(sft_crate_archive "${SFT_CARGO_TARGET_DIR}/release/libsft_tokenizer.a")
file(GLOB_RECURSE sft_crate_sources CONFIGURE_DEPENDS "${sft_crate_dir}/src/*.rs")
add_custom_command(OUTPUT "${sft_crate_archive}"
  # cargo leaves an archive that is up to date as it is; its time must follow the sources'.
  COMMAND ${CMAKE_COMMAND} -E env "CARGO_TARGET_DIR=${SFT_CARGO_TARGET_DIR}"
    ${SFT_CARGO} build --quiet --release --locked --manifest-path "${sft_crate_dir}/Cargo.toml"
  COMMAND ${CMAKE_COMMAND} -E touch "${sft_crate_archive}"
  DEPENDS "${sft_crate_dir}/Cargo.toml" "${sft_crate_dir}/Cargo.lock" ${sft_crate_sources}
  COMMENT "Building the Rust crate" VERBATIM)
add_custom_target(sft_tokenizer_archive DEPENDS "${sft_crate_archive}")
find_package(Threads REQUIRED)
add_library(sft_tokenizer_crate STATIC IMPORTED GLOBAL)
set_target_properties(sft_tokenizer_crate PROPERTIES IMPORTED_LOCATION "${sft_crate_archive}")
set_property(TARGET sft_tokenizer_crate PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads ${CMAKE_DL_LIBS} m)
add_dependencies(sft_tokenizer_crate sft_tokenizer_archive)
