// Owns the engine's precompiled header (CMakeLists.txt); holds no code.
