#include "common/columnar/parquet_schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/utf8.h"
#include "common/columnar/page_codec.h"
#include "common/columnar/row_limits.h"
#include "common/columnar/thrift.h"

namespace sft::columnar {
namespace {

constexpr size_t kMostLeaves = 10'000;
constexpr int kMostDepth = 64;
// Lines of a schema and chunks of a file are short in the footer and long in memory.
constexpr size_t kMostElements = 3 * kMostLeaves, kMostChunks = 1 << 20;

// A line of the schema as it is written: the tree, depth first.
struct Element {
  int type = -1, width = 0, repetition = 0, converted = -1, scale = 0;
  int64_t children = 0;
  std::string_view name;
  int logical = 0;   // which member of LogicalType; 0: none
  int64_t unit = 0;  // of times: ticks a second
  bool utc = false, is_signed = true;
};

// Members of LogicalType, and converted types of older files.
enum Logical {
  kString = 1,
  kMapType = 2,
  kListType = 3,
  kEnum = 4,
  kDecimal = 5,
  kDate = 6,
  kTime = 7,
  kTimestamp = 8,
  kInteger = 10,
  kUnknown = 11,
  kJson = 12,
  kUuid = 14,
  kFloat16 = 15
};
enum Converted {
  kUtf8 = 0,
  kOldMap = 1,
  kOldKeyValue = 2,
  kOldList = 3,
  kOldEnum = 4,
  kOldDecimal = 5,
  kOldDate = 6,
  kTimeMillis = 7,
  kTimeMicros = 8,
  kTimestampMillis = 9,
  kTimestampMicros = 10,
  kUint8 = 11,
  kUint64 = 14,
  kOldJson = 19
};

void ReadUnit(ThriftReader& in, Element& element) {
  in.Struct([&](int id, int) {
    element.unit = id == 1 ? 1'000 : id == 2 ? 1'000'000 : 1'000'000'000;
    return false;
  });
}

void ReadLogical(ThriftReader& in, Element& element) {
  in.Struct([&](int id, int) {
    element.logical = id;
    if (id == kTime || id == kTimestamp) {
      in.Struct([&](int part, int type) {
        if (part == 1) element.utc = type == ThriftReader::kTrue;
        if (part != 2) return false;
        ReadUnit(in, element);
        return true;
      });
      return true;
    }
    if (id == kInteger) {
      in.Struct([&](int part, int type) {
        if (part == 2) element.is_signed = type == ThriftReader::kTrue;
        return false;
      });
      return true;
    }
    if (id == kDecimal) {
      in.Struct([&](int part, int) {
        if (part != 1) return false;
        element.scale = static_cast<int>(in.Int());
        return true;
      });
      return true;
    }
    return false;
  });
}

Element ReadElement(ThriftReader& in) {
  Element element;
  in.Struct([&](int id, int) {
    switch (id) {
      case 1:
        element.type = static_cast<int>(in.Int());
        return true;
      case 2:
        element.width = static_cast<int>(in.Int());
        return true;
      case 3:
        element.repetition = static_cast<int>(in.Int());
        return true;
      case 4:
        element.name = in.Binary();
        return true;
      case 5:
        element.children = in.Int();
        return true;
      case 6:
        element.converted = static_cast<int>(in.Int());
        return true;
      case 7:
        element.scale = static_cast<int>(in.Int());
        return true;
      case 10:
        ReadLogical(in, element);
        return true;
      default:
        return false;
    }
  });
  return element;
}

ValueForm FormOfBytes(const Element& e) {
  if (e.logical == kDecimal || e.converted == kOldDecimal) return {Meaning::kDecimal, e.scale};
  if (e.logical == kUuid && e.width == 16) return {Meaning::kUuid};
  if (e.logical == kFloat16 && e.width == 2) return {Meaning::kHalf};
  const bool text = e.logical == kString || e.logical == kEnum || e.logical == kJson ||
                    e.converted == kUtf8 || e.converted == kOldEnum || e.converted == kOldJson;
  return {text ? Meaning::kText : Meaning::kBytes};
}

ValueForm FormOfInteger(const Element& e) {
  if (e.logical == kDecimal || e.converted == kOldDecimal) return {Meaning::kDecimal, e.scale};
  if (e.logical == kUnknown) return {Meaning::kNull};
  if (e.logical == kDate || e.converted == kOldDate) return {Meaning::kDate};
  if (e.logical == kTime && e.unit > 0) return {Meaning::kTime, e.unit};
  if (e.logical == kTimestamp && e.unit > 0) return {Meaning::kInstant, e.unit, e.utc};
  if (e.converted == kTimeMillis) return {Meaning::kTime, 1'000};
  if (e.converted == kTimeMicros) return {Meaning::kTime, 1'000'000};
  if (e.converted == kTimestampMillis) return {Meaning::kInstant, 1'000, true};
  if (e.converted == kTimestampMicros) return {Meaning::kInstant, 1'000'000, true};
  const bool is_unsigned =
      (e.logical == kInteger && !e.is_signed) || (e.converted >= kUint8 && e.converted <= kUint64);
  return {is_unsigned ? Meaning::kUnsigned : Meaning::kInt};
}

ValueForm FormOf(const Element& element) {
  switch (static_cast<Stored>(element.type)) {
    case Stored::kBoolean:
      return {Meaning::kBool};
    case Stored::kInt32:
    case Stored::kInt64:
      return FormOfInteger(element);
    case Stored::kInt96:
      return {Meaning::kInt96};
    case Stored::kFloat:
      return {Meaning::kFloat};
    case Stored::kDouble:
      return {Meaning::kDouble};
    case Stored::kByteArray:
    case Stored::kFixed:
      break;
  }
  return FormOfBytes(element);
}

absl::Status Damaged(std::string_view what) {
  return InvalidArgument(fmt::format("its Parquet footer is damaged: {}", what));
}

// Makes the tree of the schema's lines.
class TreeMaker {
 public:
  explicit TreeMaker(const std::vector<Element>& elements, ParquetFooter& footer)
      : elements_(elements), footer_(footer) {}

  absl::Status Run() {
    if (elements_.empty()) return Damaged("it has no schema");
    for (const Element& element : elements_) {
      if (element.name.size() > kMostNameBytes || !Count(element.name)) return NamesTooLong();
    }
    footer_.root.kind = Node::kStruct;
    ++at_;
    SFT_RETURN_IF_ERROR(Members(elements_[0], Place{}, footer_.root));
    return at_ == elements_.size() ? absl::OkStatus() : Damaged("its schema has a rest");
  }

 private:
  // Where a line stands in the tree; it refers to the place above, which is kept meanwhile.
  struct Place {
    const Place* above = nullptr;
    std::string_view name;
    int definition = 0, repetition = 0, depth = 0;
    Place Below(const Element& element) const {
      Place below = *this;
      below.above = this;
      below.name = element.name;
      below.definition += element.repetition != 0;
      below.repetition += element.repetition == 2;
      ++below.depth;
      return below;
    }
    // messages.list.element.content
    std::string Path() const {
      if (above == nullptr) return "";
      std::string path = above->Path();
      if (above->above != nullptr) path += '.';
      return path.append(name);
    }
  };

  bool Count(std::string_view name) {
    name_bytes_ += static_cast<int64_t>(name.size());
    return name_bytes_ <= kMostAllNameBytes;
  }

  absl::Status Members(const Element& parent, const Place& place, Node& node) {
    node.begin = footer_.leaves.size();
    for (int64_t i = 0; i < parent.children; ++i) {
      node.children.emplace_back();
      SFT_RETURN_IF_ERROR(Value(place, node.children.back()));
    }
    node.end = footer_.leaves.size();
    return node.begin == node.end ? Damaged("a group without columns") : absl::OkStatus();
  }

  // The value that the next line describes.
  absl::Status Value(const Place& parent, Node& node) {
    if (at_ >= elements_.size()) return Damaged("its schema ends too early");
    const Element& element = elements_[at_];
    if (!IsUtf8(element.name)) return Damaged("the name of a column is not UTF-8");
    const Place place = parent.Below(element);
    node.name = element.name;
    if (element.repetition != 2) {
      ++at_;
      node.optional = element.repetition == 1;
      node.definition = place.definition;
      return Content(element, place, node);
    }
    // A repeated field that is in no list: a list of what it is.
    node.kind = Node::kList;
    node.definition = parent.definition;
    return Repeated(place, node, /*whole=*/true);
  }

  absl::Status Content(const Element& element, const Place& place, Node& node) {
    if (place.depth > kMostDepth) return Damaged("its schema is too deep");
    if (element.children == 0) return AddLeaf(element, place, node);
    const bool list = element.logical == kListType || element.converted == kOldList;
    const bool map = element.logical == kMapType || element.converted == kOldMap ||
                     element.converted == kOldKeyValue;
    const bool wraps =
        element.children == 1 && at_ < elements_.size() && elements_[at_].repetition == 2;
    if (list && wraps) {
      node.kind = Node::kList;
      const Element& inner = elements_[at_];
      const bool whole = inner.children != 1 || inner.name == "array" ||
                         inner.name == std::string(element.name) + "_tuple";
      return Repeated(place.Below(inner), node, whole);
    }
    if (map && wraps && elements_[at_].children == 2) {
      node.kind = Node::kMap;
      return Repeated(place.Below(elements_[at_]), node, /*whole=*/false);
    }
    node.kind = Node::kStruct;
    return Members(element, place, node);
  }

  // The repeated line that stands here. `whole`: it is the element; else it only holds it.
  absl::Status Repeated(const Place& place, Node& node, bool whole) {
    const Element& element = elements_[at_++];
    node.item_definition = place.definition;
    node.item_repetition = place.repetition;
    if (!whole) return Members(element, place, node);
    node.begin = footer_.leaves.size();
    node.children.emplace_back();
    node.children.back().name = element.name;
    node.children.back().definition = place.definition;
    SFT_RETURN_IF_ERROR(Content(element, place, node.children.back()));
    node.end = footer_.leaves.size();
    return absl::OkStatus();
  }

  absl::Status AddLeaf(const Element& element, const Place& place, Node& node) {
    std::string path = place.Path();
    if (path.size() > kMostNameBytes || !Count(path)) return NamesTooLong();
    if (element.type < 0 || element.type > static_cast<int>(Stored::kFixed)) {
      return Damaged(fmt::format("column {} has no type", path));
    }
    const auto stored = static_cast<Stored>(element.type);
    if (stored == Stored::kFixed && (element.width < 1 || element.width > 1 << 20)) {
      return Damaged(fmt::format("column {} has values of {} bytes", path, element.width));
    }
    if (footer_.leaves.size() == kMostLeaves) {
      return InvalidArgument(fmt::format("it has more than {} columns", kMostLeaves));
    }
    const ValueForm form = FormOf(element);
    if (form.meaning == Meaning::kDecimal) {
      SFT_RETURN_IF_ERROR(
          CheckDecimal(path, stored == Stored::kFixed ? element.width : 0, form.scale));
    }
    node.kind = Node::kLeaf;
    node.begin = footer_.leaves.size();
    node.end = node.begin + 1;
    footer_.leaves.push_back(
        {std::move(path), stored, element.width, form, place.definition, place.repetition});
    return absl::OkStatus();
  }

  const std::vector<Element>& elements_;
  ParquetFooter& footer_;
  size_t at_ = 0;
  int64_t name_bytes_ = 0;  // names, and paths of leaves
};

struct RawChunk {
  Chunk chunk;
  bool elsewhere = false, encrypted = false, has_meta = false;
  int64_t data = 0, dictionary = 0;
};

void ReadChunkMeta(ThriftReader& in, RawChunk& raw) {
  raw.has_meta = true;
  in.Struct([&](int id, int) {
    switch (id) {
      case 4:
        raw.chunk.codec = static_cast<int>(in.Int());
        return true;
      case 5:
        raw.chunk.values = in.Int();
        return true;
      case 7:
        raw.chunk.size = in.Int();
        return true;
      case 9:
        raw.data = in.Int();
        return true;
      case 11:
        raw.dictionary = in.Int();
        return true;
      default:
        return false;
    }
  });
  const bool first = raw.dictionary > 0 && raw.dictionary < raw.data;
  raw.chunk.offset = first ? raw.dictionary : raw.data;
}

RawChunk ReadChunk(ThriftReader& in) {
  RawChunk raw;
  in.Struct([&](int id, int) {
    if (id == 1) raw.elsewhere = !in.Binary().empty();
    if (id == 3) ReadChunkMeta(in, raw);
    if (id == 8 || id == 9) raw.encrypted = true;
    return id == 1 || id == 3;
  });
  return raw;
}

absl::Status Encrypted() {
  return InvalidArgument("the Parquet file is encrypted, which is not read; write it without");
}

class FooterReader {
 public:
  FooterReader(std::string_view bytes, int64_t file_size) : in_(bytes), file_size_(file_size) {}

  absl::StatusOr<ParquetFooter> Run() {
    in_.Struct([this](int id, int) { return Field(id); });
    if (!in_.ok()) return Damaged("it cannot be parsed");
    if (encrypted_) return Encrypted();
    SFT_RETURN_IF_ERROR(TreeMaker(elements_, footer_).Run());
    int64_t rows = 0;
    for (size_t i = 0; i < groups_.size(); ++i) {
      SFT_RETURN_IF_ERROR(Annotate(AddGroup(i), fmt::format("row group {}", i + 1)));
      // At most the sum of what was checked to be positive and to fit.
      if (__builtin_add_overflow(rows, footer_.groups[i].rows, &rows)) return Damaged("its counts");
    }
    if (rows != footer_.rows) {
      return Damaged(fmt::format("it says {} rows, its row groups have {}", footer_.rows, rows));
    }
    SFT_RETURN_IF_ERROR(CheckApart());
    return std::move(footer_);
  }

 private:
  bool Field(int id) {
    switch (id) {
      case 2:
        in_.List([this](int) {
          elements_.push_back(ReadElement(in_));
          if (elements_.size() > kMostElements) in_.Fail();
        });
        return true;
      case 3:
        footer_.rows = in_.Int();
        return true;
      case 4:
        in_.List([this](int) { ReadGroup(); });
        return true;
      case 8:
        encrypted_ = true;
        return false;
      default:
        return false;
    }
  }

  void ReadGroup() {
    auto& [rows, chunks] = groups_.emplace_back();
    if (++chunks_ > kMostChunks) in_.Fail();
    in_.Struct([&](int id, int) {
      if (id == 1) {
        in_.List([&](int) {
          chunks.push_back(ReadChunk(in_));
          if (++chunks_ > kMostChunks) in_.Fail();
        });
        return true;
      }
      if (id == 3) rows = in_.Int();
      return id == 3;
    });
  }

  // Chunks that share bytes make a short file's rows long to read.
  absl::Status CheckApart() const {
    std::vector<std::pair<int64_t, int64_t>> places;
    for (const RowGroup& group : footer_.groups) {
      for (const Chunk& chunk : group.chunks) {
        if (chunk.values > 0 && chunk.size > 0) places.emplace_back(chunk.offset, chunk.size);
      }
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i) {
      if (places[i].first < places[i - 1].first + places[i - 1].second) {
        return Damaged("two columns stand in the same bytes");
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddGroup(size_t index) {
    const auto& [rows, chunks] = groups_[index];
    RowGroup group = {rows, {}};
    if (rows < 0 || chunks.size() != footer_.leaves.size()) {
      return Damaged(fmt::format("{} columns instead of {}", chunks.size(), footer_.leaves.size()));
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      const RawChunk& raw = chunks[i];
      const std::string& path = footer_.leaves[i].path;
      if (raw.encrypted) return Encrypted();
      if (raw.elsewhere) {
        return InvalidArgument(fmt::format(
            "column {} is in another file, which is not read; write one file that holds all",
            path));
      }
      if (std::string refusal = CodecRefusal(raw.chunk.codec); !refusal.empty()) {
        return InvalidArgument(fmt::format("column {} is {}", path, refusal));
      }
      const Chunk& chunk = raw.chunk;
      const bool inside = chunk.values == 0 ||
                          (chunk.offset >= 4 && chunk.size >= 0 && chunk.offset <= file_size_ &&
                           chunk.size <= file_size_ - chunk.offset);
      if (!raw.has_meta || !inside || chunk.values < 0) {
        return Damaged(fmt::format("column {} stands outside the file; is it cut short?", path));
      }
      group.chunks.push_back(chunk);
    }
    footer_.groups.push_back(std::move(group));
    return absl::OkStatus();
  }

  ThriftReader in_;
  const int64_t file_size_;
  ParquetFooter footer_;
  std::vector<Element> elements_;
  std::vector<std::pair<int64_t, std::vector<RawChunk>>> groups_;
  size_t chunks_ = 0;
  bool encrypted_ = false;
};

}  // namespace

absl::StatusOr<ParquetFooter> ParseFooter(std::string_view bytes, int64_t file_size) {
  return FooterReader(bytes, file_size).Run();
}

}  // namespace sft::columnar
