#include "common/columnar/parquet_column.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/bytes.h"
#include "common/columnar/page_codec.h"
#include "common/io/file.h"

namespace sft::columnar {
namespace {

// Kinds of pages; others, such as an index, are passed over.
constexpr int kDataPage = 0, kDictionaryPage = 2, kDataPageV2 = 3;
// Headers hold the smallest and largest value of their page.
constexpr size_t kFirstHeaderRead = 4 << 10, kMostHeader = 32 << 20;

// What a page without values, which none needs, may unpack to.
constexpr int64_t kMostEmptyPage = 1 << 20;

// Numbers of headers have 32 bits.
bool Fits(int64_t number) { return number >= 0 && number <= INT32_MAX; }

int BitsFor(int level) { return std::bit_width(static_cast<unsigned>(level)); }

}  // namespace

ColumnReader::ColumnReader(int fd, std::string path, const Leaf& leaf, const Chunk& chunk,
                           PageMemory& memory)
    : fd_(fd),
      path_(std::move(path)),
      leaf_(leaf),
      chunk_(chunk),
      memory_(memory),
      left_(chunk.values) {
  Next();
}

ColumnReader::~ColumnReader() { memory_.used -= page_charge_ + dictionary_charge_; }

absl::Status ColumnReader::Damaged(std::string_view what) const {
  return InvalidArgument(fmt::format("column {}: {}; the file is damaged", leaf_.path, what));
}

void ColumnReader::End(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  at_end_ = true;
  definition_ = repetition_ = 0;
  value_ = {};  // its bytes may be gone
}

void ColumnReader::Next() {
  if (at_end_) return;
  while (page_left_ == 0) {
    if (left_ == 0) return End(absl::OkStatus());
    if (absl::Status loaded = LoadPage(); !loaded.ok()) return End(std::move(loaded));
  }
  --page_left_;
  uint32_t definition = 0, repetition = 0;
  if (!definitions_.Next(definition) || !repetitions_.Next(repetition) ||
      definition > static_cast<uint32_t>(leaf_.max_definition) ||
      repetition > static_cast<uint32_t>(leaf_.max_repetition)) {
    return End(Damaged("levels that do not fit"));
  }
  definition_ = static_cast<int>(definition);
  repetition_ = static_cast<int>(repetition);
  if (definition_ == leaf_.max_definition && !values_.Next(value_)) {
    return End(Damaged("a page with fewer values than it says"));
  }
}

ColumnReader::Header ColumnReader::ReadHeader(ThriftReader& in) {
  Header header;
  const auto part = [&](int values, int encoding, int levels) {
    in.Struct([&](int id, int) {
      if (id == values) {
        header.values = in.Int();
      } else if (id == encoding) {
        header.encoding = static_cast<int>(in.Int());
      } else if (id == levels) {
        header.levels_encoding = static_cast<int>(in.Int());
      } else {
        return false;
      }
      return true;
    });
  };
  in.Struct([&](int id, int) {
    switch (id) {
      case 1:
        header.type = static_cast<int>(in.Int());
        return true;
      case 2:
        header.unpacked = in.Int();
        return true;
      case 3:
        header.packed = in.Int();
        return true;
      case 4:
        header.crc = static_cast<int64_t>(static_cast<uint32_t>(in.Int()));
        return true;
      case 5:
        part(1, 2, 3);
        return true;
      case 7:
        part(1, 2, -1);
        return true;
      case 8:
        in.Struct([&](int field, int type) {
          if (field == 1) header.values = in.Int();
          if (field == 2) header.nulls = in.Int();
          if (field == 3) header.rows = in.Int();
          if (field == 4) header.encoding = static_cast<int>(in.Int());
          if (field == 5) header.definition_bytes = in.Int();
          if (field == 6) header.repetition_bytes = in.Int();
          if (field == 7) header.is_packed = type == ThriftReader::kTrue;
          return field >= 1 && field <= 6;
        });
        return true;
      default:
        return false;
    }
  });
  return header;
}

absl::Status ColumnReader::LoadHeader(Header& header) {
  std::string bytes;
  for (size_t size = kFirstHeaderRead;; size *= 8) {
    bytes.resize(
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(size), chunk_.size - at_)));
    SFT_ASSIGN_OR_RETURN(const size_t got,
                         io::ReadAt(fd_, chunk_.offset + at_, bytes.data(), bytes.size(), path_));
    bytes.resize(got);
    ThriftReader in(bytes);
    header = ReadHeader(in);
    if (in.ok()) {
      at_ += static_cast<int64_t>(in.position());
      break;
    }
    if (!in.cut() || got < size || size > kMostHeader) return Damaged("a page without a header");
  }
  const int64_t numbers[] = {header.packed, header.unpacked,         header.values,
                             header.nulls,  header.definition_bytes, header.repetition_bytes,
                             header.rows};
  if (!std::all_of(std::begin(numbers), std::end(numbers), Fits) ||
      header.packed > chunk_.size - at_) {
    return Damaged("a page that does not fit");
  }
  if (header.values == 0 && header.unpacked > kMostEmptyPage) {
    return Damaged(fmt::format("a page of {} without a value", BytesText(header.unpacked)));
  }
  memory_.counter.Work(1 + header.packed + header.unpacked);
  return memory_.counter.spent() ? memory_.counter.TooMuchWork() : absl::OkStatus();
}

absl::Status ColumnReader::Charge(int64_t bytes, int64_t& charged) {
  memory_.used += bytes - charged;
  charged = bytes;
  if (memory_.used <= memory_.most) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "column {}: the pages of its row group take more than {} of memory; write the file with "
      "smaller pages (pyarrow: data_page_size, dictionary_pagesize_limit)",
      leaf_.path, BytesText(memory_.most)));
}

absl::Status ColumnReader::LoadBody(const Header& header, std::string& body) {
  body.resize(static_cast<size_t>(header.packed));
  SFT_ASSIGN_OR_RETURN(const size_t got,
                       io::ReadAt(fd_, chunk_.offset + at_, body.data(), body.size(), path_));
  if (got < body.size()) return Damaged("the file ends in it");
  at_ += header.packed;
  if (header.crc < 0) return absl::OkStatus();
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
  if (static_cast<int64_t>(crc) == header.crc) return absl::OkStatus();
  return Damaged("a page whose check sum is wrong");
}

absl::Status ColumnReader::Unpack(std::string_view packed, size_t size, std::string& out) {
  out.resize(size);
  if (UnpackPage(static_cast<Codec>(chunk_.codec), packed, out)) return absl::OkStatus();
  return Damaged("a page that cannot be unpacked");
}

absl::Status ColumnReader::LoadDictionary(const Header& header) {
  if (has_dictionary_) return Damaged("two dictionaries");
  // A value takes a byte at least, but for those of a column that can hold only one.
  const int64_t least = leaf_.stored == Stored::kByteArray ? 4 : 1;
  if (header.values > header.unpacked / least) return Damaged("a dictionary that does not fit");
  memory_.counter.Work(header.values);
  SFT_RETURN_IF_ERROR(
      Charge(header.packed + header.unpacked + header.values * static_cast<int64_t>(sizeof(Value)),
             dictionary_charge_));
  std::string body;
  SFT_RETURN_IF_ERROR(LoadBody(header, body));
  SFT_RETURN_IF_ERROR(Unpack(body, static_cast<size_t>(header.unpacked), dictionary_bytes_));
  PageValues values;
  if (!values.Open(leaf_, Encoding::kPlain, dictionary_bytes_, header.values, nullptr)) {
    return Damaged("a dictionary that cannot be read");
  }
  dictionary_.resize(static_cast<size_t>(header.values));
  for (Value& value : dictionary_) {
    if (!values.Next(value)) return Damaged("a dictionary that ends too early");
  }
  has_dictionary_ = true;
  return absl::OkStatus();
}

absl::Status ColumnReader::LoadPage() {
  for (;;) {
    if (at_ >= chunk_.size) return Damaged("it ends before its rows do");
    Header header;
    SFT_RETURN_IF_ERROR(LoadHeader(header));
    if (header.type == kDataPage || header.type == kDataPageV2) return OpenData(header);
    if (header.type == kDictionaryPage) {
      SFT_RETURN_IF_ERROR(LoadDictionary(header));
    } else {
      at_ += header.packed;
    }
  }
}

absl::Status ColumnReader::OpenLevels(const Header& header, std::string_view& bytes) {
  const std::pair<int, RunReader*> levels[] = {{leaf_.max_repetition, &repetitions_},
                                               {leaf_.max_definition, &definitions_}};
  for (const auto& [most, reader] : levels) {
    uint32_t size = 0;
    *reader = RunReader({}, 0);
    if (most == 0) continue;
    if (header.levels_encoding != static_cast<int>(Encoding::kRle)) {
      return InvalidArgument(fmt::format(
          "column {}: levels in a coding of 2013, which is not read; write the file anew",
          leaf_.path));
    }
    if (bytes.size() < 4) return Damaged("levels that end too early");
    std::memcpy(&size, bytes.data(), 4);
    if (size > bytes.size() - 4) return Damaged("levels that end too early");
    *reader = RunReader(bytes.substr(4, size), BitsFor(most));
    bytes.remove_prefix(4 + static_cast<size_t>(size));
  }
  return absl::OkStatus();
}

absl::Status ColumnReader::OpenPage(const Header& header, std::string_view& bytes) {
  std::string body;
  SFT_RETURN_IF_ERROR(LoadBody(header, body));
  SFT_RETURN_IF_ERROR(Unpack(body, static_cast<size_t>(header.unpacked), page_));
  bytes = page_;
  return OpenLevels(header, bytes);
}

absl::Status ColumnReader::OpenPageV2(const Header& header, std::string_view& bytes) {
  const int64_t levels = header.repetition_bytes + header.definition_bytes;
  if (levels > header.packed || levels > header.unpacked) {
    return Damaged("levels that do not fit");
  }
  std::string body, values;
  SFT_RETURN_IF_ERROR(LoadBody(header, body));
  // The levels are not packed; the page keeps them before its values.
  const std::string_view rest = std::string_view(body).substr(static_cast<size_t>(levels));
  const auto size = static_cast<size_t>(header.unpacked - levels);
  page_.reserve(static_cast<size_t>(header.unpacked));
  page_.assign(body, 0, static_cast<size_t>(levels));
  if (!header.is_packed) {
    if (rest.size() != size) return Damaged("a page that does not fit");
    page_ += rest;
  } else if (size > 0) {
    SFT_RETURN_IF_ERROR(Unpack(rest, size, values));
    page_ += values;
  }
  bytes = page_;
  const auto first = static_cast<size_t>(header.repetition_bytes);
  const auto second = static_cast<size_t>(header.definition_bytes);
  repetitions_ = RunReader(bytes.substr(0, first), BitsFor(leaf_.max_repetition));
  definitions_ = RunReader(bytes.substr(first, second), BitsFor(leaf_.max_definition));
  bytes.remove_prefix(first + second);
  return absl::OkStatus();
}

absl::Status ColumnReader::OpenData(const Header& header) {
  if (header.values > left_) return Damaged("more values than its row group says");
  const auto encoding = static_cast<Encoding>(header.encoding);
  // The page before gives back what it held, room that a smaller one does not need included.
  values_ = PageValues();
  page_ = std::string();
  const int64_t held = header.unpacked + PageValues::ExtraBytes(encoding, header.values);
  const bool first_form = header.type == kDataPage;
  // Meanwhile there are the packed bytes, and of the second form the values once more.
  SFT_RETURN_IF_ERROR(
      Charge(held + header.packed + (first_form ? 0 : header.unpacked), page_charge_));
  std::string_view bytes;
  SFT_RETURN_IF_ERROR(first_form ? OpenPage(header, bytes) : OpenPageV2(header, bytes));
  SFT_RETURN_IF_ERROR(Charge(held, page_charge_));
  if (!values_.Open(leaf_, encoding, bytes, header.values,
                    has_dictionary_ ? &dictionary_ : nullptr)) {
    return Damaged(fmt::format("a page of encoding {} that cannot be read", header.encoding));
  }
  left_ -= header.values;
  page_left_ = header.values;
  return absl::OkStatus();
}

}  // namespace sft::columnar
