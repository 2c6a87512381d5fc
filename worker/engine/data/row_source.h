#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "worker/engine/data/dataset.h"
#include "worker/engine/data/files.h"

namespace sft::engine {

// A row of a data file as it stands there.
struct Line {
  int64_t number = 0;  // from 1; of the row where the file has no lines
  std::string_view text;
};

// The rows of a data file, each as JSON text; of texts a row for each of their documents
// (data.text_documents). Those of JSON Lines are read where they are; what
// stands otherwise is unpacked to a file without a name in the cache's folder, since rows need not
// fit into memory.
class RowSource {
 public:
  // Throws UserError when the file is not whole or has no rows. `file` must outlive it.
  RowSource(const MappedFile& file, const PrepareOptions& options);

  std::string_view bytes() const { return bytes_; }
  const std::vector<Line>& lines() const { return lines_; }

 private:
  void Unpack(const MappedFile& file, const PrepareOptions& options);

  std::optional<MappedFile> unpacked_;
  std::string_view bytes_;
  std::vector<Line> lines_;
};

}  // namespace sft::engine
