#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/data/row_form.h"
#include "common/data/row_reader.h"

namespace sft::data {

// Goes up with each change by which a file can get another verdict; older verdicts are made anew.
inline constexpr int kCheckVersion = 1;

// Summary of a data set's rows.
struct DatasetCheck {
  int64_t rows = 0;
  // Rows that are JSON objects in none of the forms a job can learn from. Each job decides how they
  // are treated (data.on_bad_rows).
  int64_t odd_rows = 0;
  int64_t first_odd_row = 0;  // counted from 1 in rows; 0: none
  std::string first_odd;      // "line 7: the error"
  FileKind kind;
  FormCounts forms = {};                 // odd rows are counted under the form that they have
  int64_t bytes = 0, longest_bytes = 0;  // of rows as JSON text: all together, and the longest
};

// Checks a data set row by row: it must not be empty, and its file must be whole (ReadRows) and its
// rows objects. INVALID_ARGUMENT names the line and what is right: such a file is not kept. `name`
// is what its owner calls it. Whether a row has an answer to learn from depends on the job and is
// checked when the row is prepared.
absl::StatusOr<DatasetCheck> CheckDataset(const std::string& path, std::string_view name = "",
                                          const RowNames& names = {},
                                          Learns learns = Learns::kTexts);

// The same in a process that many depend on: Parquet and Arrow files, whose readers have much more
// that a hostile file could use, are not opened. Their rows are 0: not counted. Who submits and who
// prepares reads them.
absl::StatusOr<DatasetCheck> CheckUpload(const std::string& path, std::string_view name,
                                         Learns learns = Learns::kTexts);

// The least wire protocol whose workers read the file: those of the first release know JSON Lines
// of messages, prompts with completions, and texts.
int ProtocolOf(const DatasetCheck& found);
// The same of a file that nobody has read, by its name.
int ProtocolOfName(std::string_view name);

// Why a job cannot use these rows; empty if it can, or if only its ranks can tell. `skips`: the job
// leaves out rows that it cannot use. `taken`: the job reads only the first `taken` rows; 0 means
// all.
std::string RowsProblem(const DatasetCheck& found, bool skips, int64_t taken);

}  // namespace sft::data
