#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/io/file.h"

namespace sft::engine {

// A folder of its own for a test, removed at its end.
class TempDir {
 public:
  TempDir() : path_(io::MakeTempDir("sft-checkpoint-test-").value()) {}
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void PutFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string GetFile(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Names in the folder, sorted, joined by blanks.
inline std::string Listing(const std::filesystem::path& path) {
  std::string names;
  const std::vector<std::string> entries = io::ListDir(path.string()).value();
  for (const std::string& name : entries) {
    names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

}  // namespace sft::engine
