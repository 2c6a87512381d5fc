#include "common/columnar/table.h"

#include "common/columnar/arrow_rows.h"
#include "common/columnar/parquet_rows.h"
#include "common/io/file.h"

namespace sft::columnar {

bool IsTable(std::string_view head) { return LooksLikeParquet(head) || LooksLikeArrow(head); }

absl::Status ReadTable(int fd, std::string_view path, const RowLimits& limits,
                       const TakeObject& take) {
  char bytes[8];
  SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd, 0, bytes, sizeof(bytes), path));
  const std::string_view head(bytes, got);
  if (LooksLikeParquet(head)) return ReadParquet(fd, path, limits, take);
  if (LooksLikeArrow(head)) return ReadArrow(fd, path, limits, take);
  return InvalidArgument("neither a Parquet nor an Arrow file");
}

}  // namespace sft::columnar
