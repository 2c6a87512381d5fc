#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/data/row_form.h"

namespace sft::client {

// The rows of a folder's files as one file, which is removed with this object.
class PackedFolder {
 public:
  // Reads the files that the folder's name means (common/data/folder.h), in their order, and writes
  // their rows as JSON Lines packed by Zstandard below $TMPDIR. Equal folders give equal files.
  // INVALID_ARGUMENT names the file and line of what is wrong. `names`: what columns are called, of
  // which some hold lists in tables of text.
  static absl::StatusOr<PackedFolder> Make(const std::string& name,
                                           const data::RowNames& names = {});
  PackedFolder(PackedFolder&& other) noexcept;
  PackedFolder& operator=(PackedFolder&& other) noexcept;
  ~PackedFolder();

  std::string path() const;
  int64_t files() const { return files_; }
  // Which of the folder's files they are: "config en, split train".
  const std::string& chosen() const { return chosen_; }

 private:
  PackedFolder() = default;
  std::string dir_, chosen_;
  int64_t files_ = 0;
};

// Whether the path, as the job file or a person names it, is a folder.
bool NamesFolder(const std::string& name);

// Whether it is one whose files are raw documents, .txt and .md.
bool IsFolderOfDocuments(const std::string& name);

}  // namespace sft::client
