#include "common/columnar/arrow_rows.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/columnar/arrow_batch.h"
#include "common/columnar/flat_table.h"
#include "common/io/file.h"

namespace sft::columnar {
namespace {

constexpr std::string_view kFileMagic = "ARROW1", kContinuation = "\xff\xff\xff\xff";
constexpr int64_t kMostMessage = 16 << 20;
constexpr int64_t kMostBatchBytes = int64_t{512} << 20;

// Kinds of messages.
constexpr int kSchema = 1, kDictionaryBatch = 2, kRecordBatch = 3;

absl::Status CutShort() {
  return InvalidArgument("an Arrow file that is cut short; copy or download it again");
}

// The messages of a stream, one after the other. A file is a stream behind its magic.
class ArrowReader {
 public:
  ArrowReader(int fd, std::string_view path, const RowLimits& limits, const TakeObject& take,
              int64_t size)
      : fd_(fd), path_(path), take_(take), size_(size), counter_(limits, size) {}

  absl::Status Run() {
    SFT_ASSIGN_OR_RETURN(const std::string head, Read(8, /*whole=*/false));
    at_ = head.starts_with(kFileMagic) ? 8 : 0;
    if (at_ > 0) {
      const int64_t begun = at_;
      at_ = std::max<int64_t>(size_ - static_cast<int64_t>(kFileMagic.size()), 8);
      SFT_ASSIGN_OR_RETURN(const std::string tail, Read(kFileMagic.size(), /*whole=*/false));
      if (tail != kFileMagic) return CutShort();
      at_ = begun;
    }
    for (;;) {
      SFT_ASSIGN_OR_RETURN(const bool more, Message());
      if (!more) break;
    }
    return has_schema_ ? absl::OkStatus() : CutShort();
  }

 private:
  absl::StatusOr<std::string> Read(size_t size, bool whole = true) {
    std::string bytes(size, '\0');
    SFT_ASSIGN_OR_RETURN(const size_t got, io::ReadAt(fd_, at_, bytes.data(), size, path_));
    bytes.resize(got);
    at_ += static_cast<int64_t>(got);
    if (whole && got < size) return CutShort();
    return bytes;
  }

  absl::StatusOr<bool> Message() {
    SFT_ASSIGN_OR_RETURN(const std::string head, Read(8, /*whole=*/false));
    if (head.empty()) return false;
    if (head.size() < 8) return CutShort();
    if (!head.starts_with(kContinuation)) {
      return InvalidArgument("not an Arrow stream of version 0.15 or later, or damaged");
    }
    int32_t size = 0;
    std::memcpy(&size, head.data() + 4, 4);
    if (size == 0) return false;
    if (size < 0 || size > kMostMessage || size > size_ - at_) return CutShort();
    SFT_ASSIGN_OR_RETURN(const std::string meta, Read(static_cast<size_t>(size)));
    FlatTable::Buffer buffer{meta};
    const FlatTable message = FlatTable::Root(buffer);
    const int kind = message.Get<uint8_t>(1, 0);
    const auto body_size = message.Get<int64_t>(3, 0);
    const FlatTable header = message.Table(2);
    if (!buffer.ok || !header.there() || body_size < 0) return Damaged();
    if (body_size > size_ - at_) return CutShort();
    if (body_size > kMostBatchBytes - kept_) {
      return InvalidArgument(fmt::format(
          "a batch of rows takes more than {} of memory; write the table in smaller batches",
          BytesText(kMostBatchBytes)));
    }
    SFT_ASSIGN_OR_RETURN(std::string body, Read(static_cast<size_t>(body_size)));
    absl::StatusOr<bool> more = true;
    if (kind == kSchema) {
      SFT_RETURN_IF_ERROR(TakeSchema(header));
    } else if (kind == kDictionaryBatch) {
      SFT_RETURN_IF_ERROR(TakeDictionary(header, std::move(body)));
    } else if (kind == kRecordBatch) {
      more = TakeRows(header, std::move(body));
    }
    if (!buffer.ok) return Damaged();
    return more;
  }

  static absl::Status Damaged() { return InvalidArgument("an Arrow file that is damaged"); }

  absl::Status TakeSchema(const FlatTable& schema) {
    if (has_schema_) return Damaged();
    if (schema.Get<int16_t>(0, 0) != 0) {
      return InvalidArgument("an Arrow file of a big-endian machine, which is not read");
    }
    size_t count = 0;
    const size_t at = schema.Vector(1, 4, count);
    ArrowSchemaRoom room;
    for (size_t i = 0; i < count; ++i) {
      SFT_ASSIGN_OR_RETURN(ArrowField field, ReadArrowField(schema.At(at + 4 * i), 0, room));
      fields_.push_back(std::move(field));
    }
    for (const ArrowField& field : fields_)
      SFT_RETURN_IF_ERROR(KeepValues(field, /*inside=*/false));
    has_schema_ = true;
    return absl::OkStatus();
  }

  // The values of a dictionary are of the field's type, without the dictionary.
  absl::Status KeepValues(const ArrowField& field, bool inside) {
    const bool keeps = field.dictionary >= 0;
    if (keeps && inside) {
      return InvalidArgument(
          fmt::format("column {} is a dictionary in another's values, which is not read; write the "
                      "table as Parquet",
                      field.name));
    }
    for (const ArrowField& child : field.children) {
      SFT_RETURN_IF_ERROR(KeepValues(child, inside || keeps));
    }
    if (!keeps) return absl::OkStatus();
    auto& values = values_[field.dictionary];
    values = {field};
    values.front().dictionary = -1;
    return absl::OkStatus();
  }

  absl::Status TakeDictionary(const FlatTable& dictionary, std::string body) {
    const auto id = dictionary.Get<int64_t>(0, 0);
    const auto fields = values_.find(id);
    const FlatTable data = dictionary.Table(1);
    if (fields == values_.end() || !data.there()) return Damaged();
    if (dictionary.Get<uint8_t>(2, 0) != 0) {
      return InvalidArgument(
          "a dictionary in parts, which is not read; write the table as Parquet");
    }
    SFT_ASSIGN_OR_RETURN(auto batch, ArrowBatch::Make(fields->second, data, std::move(body),
                                                      dictionaries_, kMostBatchBytes - kept_));
    SFT_RETURN_IF_ERROR(CountUnpacked(*batch));
    auto& kept = dictionaries_[id];
    if (kept != nullptr) kept_ -= kept->bytes();
    kept_ += batch->bytes();
    kept = std::move(batch);
    return absl::OkStatus();
  }

  absl::Status CountUnpacked(const ArrowBatch& batch) {
    counter_.Work(batch.bytes());
    return counter_.spent() ? counter_.TooMuchWork() : absl::OkStatus();
  }

  absl::StatusOr<bool> TakeRows(const FlatTable& header, std::string body) {
    if (!has_schema_) return Damaged();
    SFT_ASSIGN_OR_RETURN(
        const auto batch,
        ArrowBatch::Make(fields_, header, std::move(body), dictionaries_, kMostBatchBytes - kept_));
    SFT_RETURN_IF_ERROR(CountUnpacked(*batch));
    for (int64_t i = 0; i < batch->rows(); ++i) {
      ++row_;
      text_.clear();
      const absl::Status read = batch->AppendRow(i, counter_, text_);
      absl::Status status = counter_.Add(text_);
      if (status.ok()) status = read;
      if (!status.ok()) return Annotate(status, fmt::format("row {}", row_));
      SFT_ASSIGN_OR_RETURN(const bool more, take_(row_, text_));
      if (!more) return false;
    }
    return true;
  }

  const int fd_;
  const std::string_view path_;
  const TakeObject& take_;
  const int64_t size_;
  RowCounter counter_;
  int64_t at_ = 0, row_ = 0, kept_ = 0;
  bool has_schema_ = false;
  std::vector<ArrowField> fields_;
  std::map<int64_t, std::vector<ArrowField>> values_;
  ArrowBatch::Dictionaries dictionaries_;
  std::string text_;
};

}  // namespace

bool LooksLikeArrow(std::string_view head) {
  // A stream begins with its schema: the size of the message follows, in which few bits are set.
  return head.starts_with(kFileMagic) ||
         (head.starts_with(kContinuation) && head.size() >= 8 && head[7] == 0);
}

absl::Status ReadArrow(int fd, std::string_view path, const RowLimits& limits,
                       const TakeObject& take) {
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd, path));
  return ArrowReader(fd, path, limits, take, size).Run();
}

}  // namespace sft::columnar
