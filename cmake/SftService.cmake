# Third-party libraries of the service part: the distribution's, static archives when SFT_STATIC.
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_program(SFT_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# The archives of one gRPC process in one group: their order does not matter to the linker then.
add_library(sft_grpc INTERFACE)
if(SFT_STATIC)
  file(GLOB sft_absl_archives /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/libabsl_*.a)
  target_link_libraries(sft_grpc INTERFACE
    -Wl,--start-group
    -l:libgrpc++_reflection.a -l:libgrpc++.a -l:libgrpc.a -l:libgpr.a -l:libprotobuf.a -l:libupb.a
    -l:libaddress_sorting.a -l:libre2.a -l:libcares.a ${sft_absl_archives} -l:libz.a -l:libssl.a
    -l:libcrypto.a
    -Wl,--end-group Threads::Threads ${CMAKE_DL_LIBS})
else()
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(sft_grpcpp REQUIRED IMPORTED_TARGET grpc++ absl_synchronization)
  # NOMINMAX, of another system: who has it and who has not could not share a precompiled header.
  set_target_properties(PkgConfig::sft_grpcpp PROPERTIES INTERFACE_COMPILE_OPTIONS "")
  target_link_libraries(sft_grpc INTERFACE -lgrpc++_reflection PkgConfig::sft_grpcpp protobuf::libprotobuf)
endif()

add_library(sft_sqlite INTERFACE)
target_link_libraries(sft_sqlite INTERFACE $<IF:$<BOOL:${SFT_STATIC}>,-l:libsqlite3.a,sqlite3> Threads::Threads ${CMAKE_DL_LIBS} m)

add_library(sft_ncurses INTERFACE)
target_link_libraries(sft_ncurses INTERFACE $<IF:$<BOOL:${SFT_STATIC}>,-l:libncursesw.a,ncursesw>
  $<IF:$<BOOL:${SFT_STATIC}>,-l:libtinfo.a,tinfo>)

# Linked into every service binary: run-time libraries inside, so that only libc and libm are needed.
add_library(sft_static_runtime INTERFACE)
if(SFT_STATIC AND NOT SFT_SANITIZE)
  target_link_options(sft_static_runtime INTERFACE -static-libstdc++ -static-libgcc)
endif()
