#include "common/data/dataset_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/utf8.h"

namespace sft::data {
namespace {

absl::Status Refuse(Container container, int64_t line, const std::string& problem) {
  return InvalidArgument(fmt::format(
      "{} {}: {}; a data set is JSON Lines, one object a line, or one JSON array of objects",
      PlaceWord(container), line, problem));
}

std::string Shown(std::string_view row) {
  return ToUtf8(row.substr(0, 60)) + (row.size() > 60 ? "..." : "");
}

}  // namespace

absl::StatusOr<DatasetCheck> CheckDataset(const std::string& path, std::string_view name,
                                          const RowNames& names, Learns learns) {
  DatasetCheck found;
  const TakeRow take = [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
    const RowShape shape = ShapeOf(row, names, learns);
    if (!shape.is_json)
      return Refuse(found.kind.container, line, fmt::format("not JSON: {}", Shown(row)));
    if (!shape.kind.empty()) {
      return Refuse(found.kind.container, line,
                    fmt::format("a JSON {}, not an object", shape.kind));
    }
    ++found.rows;
    const auto size = static_cast<int64_t>(row.size());
    found.bytes += size;
    found.longest_bytes = std::max(found.longest_bytes, size);
    ++found.forms[static_cast<size_t>(shape.form)];
    if (!shape.problem.empty() && ++found.odd_rows == 1) {
      found.first_odd_row = found.rows;
      found.first_odd =
          fmt::format("{} {}: {}", PlaceWord(found.kind.container), line, shape.problem);
    }
    return true;
  };
  SFT_RETURN_IF_ERROR(ReadRows(path, name, {.names = &names, .kind = &found.kind}, take));
  if (found.rows == 0) return InvalidArgument("the data set is empty: it has no rows");
  return found;
}

absl::StatusOr<DatasetCheck> CheckUpload(const std::string& path, std::string_view name,
                                         Learns learns) {
  SFT_ASSIGN_OR_RETURN(const bool is_table, IsTableFile(path));
  if (is_table) return DatasetCheck{.kind = {Container::kTable, false}};
  return CheckDataset(path, name, {}, learns);
}

int ProtocolOf(const DatasetCheck& found) {
  constexpr int kFirst = 1, kForms2 = 2;
  int64_t known = 0;
  for (const Form form : {Form::kMessages, Form::kCompletion, Form::kText, Form::kUnknown}) {
    known += found.forms[static_cast<size_t>(form)];
  }
  const bool plain = found.kind.container == Container::kLines && !found.kind.packed;
  return plain && known == found.rows ? kFirst : kForms2;
}

int ProtocolOfName(std::string_view name) {
  bool packed = false;
  for (const std::string_view ending : {".gz", ".zst", ".bz2", ".xz"}) {
    packed = packed || name.ends_with(ending);
  }
  return packed || ContainerOf(name, "") != Container::kLines ? 2 : 1;
}

std::string RowsProblem(const DatasetCheck& found, bool skips, int64_t taken) {
  if (found.odd_rows == 0) return "";
  if (found.odd_rows == found.rows) {
    return fmt::format("none of its {} rows can be used; {}", found.rows, found.first_odd);
  }
  if (skips || (taken > 0 && found.first_odd_row > taken)) return "";
  return fmt::format(
      "{} ({} of {} rows are like it); correct them, or leave them out with "
      "data.on_bad_rows = \"skip\"",
      found.first_odd, found.odd_rows, found.rows);
}

}  // namespace sft::data
