#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/io/file.h"

namespace sft::engine {

// Does nothing when `status` is OK. Throws what it means for a file that the job names: missing or
// unreadable is the user's error, a full disk or a failing device the node's.
void ThrowIfError(const absl::Status& status);

// The same for files of our own, such as the cache: whatever fails is the node's.
void ThrowIfNodeError(const absl::Status& status);

// False for a file that is not there. Throws UserError where that cannot be told: a link that leads
// to itself.
bool FileExists(const std::filesystem::path& path);

// The whole file. Throws UserError when it is missing or unreadable.
std::string ReadTextFile(const std::filesystem::path& path);

// A file mapped for reading as long as the object lives. Movable.
class MappedFile {
 public:
  // Throws UserError when the file is missing, unreadable or not a regular file, and, with a
  // `stamp` (common/io/file_stamp.h, ContentStamp), when it is another one by now or lies elsewhere
  // than the path, which has no links, says.
  static MappedFile Open(const std::filesystem::path& path, const std::string& stamp = "");
  // The same for a file that is open; `path` stands in messages.
  static MappedFile Map(io::UniqueFd fd, const std::filesystem::path& path);
  // A second descriptor of the mapped file, wherever its path leads by now.
  io::UniqueFd Descriptor() const;
  std::string_view bytes() const { return {data_.get(), data_.get_deleter().size}; }

 private:
  struct Unmap {
    size_t size = 0;
    void operator()(const char* data) const;
  };
  MappedFile(io::UniqueFd fd, std::unique_ptr<const char, Unmap> data)
      : fd_(std::move(fd)), data_(std::move(data)) {}
  io::UniqueFd fd_;
  std::unique_ptr<const char, Unmap> data_;
};

}  // namespace sft::engine
