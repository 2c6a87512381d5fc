#include "worker/node/safetensors_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/utf8.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Finds the largest end of a tensor while the header is parsed, and keeps name, type and shape of
// each if asked. Nothing else is kept, because a header of small values would be thirty times as
// large in memory.
class Header : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Header(NamedTensors* tensors) : tensors_(tensors) {}

  // False if this is not a header of tensors.
  bool Read(std::string_view text) {
    return nlohmann::json::sax_parse(text.begin(), text.end(), this) && sound_;
  }
  uint64_t end() const { return end_; }
  const std::string& last() const { return last_; }  // the tensor that ends last

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t& text) override;
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(/*list=*/false); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(/*list=*/true); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override;
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  // Values of a tensor's entry that are kept.
  enum class Part { kOther, kType, kShape };

  bool Value();
  bool Open(bool list);
  bool Close();

  int64_t depth_ = 0;  // open containers: 1 within the header, 2 within a tensor
  bool sound_ = true;
  bool metadata_ = false;  // within "__metadata__"
  std::string name_;       // name of the tensor
  Part part_ = Part::kOther;
  plan::HeaderTensor tensor_;  // what is known of it
  bool at_offsets_ = false;    // the next value is that of "data_offsets"
  int numbers_ = -1;           // its numbers so far; negative: not within it
  bool has_offsets_ = false;
  uint64_t end_of_one_ = 0, end_ = 0;
  std::string last_;
  NamedTensors* const tensors_;
};

bool Header::key(string_t& name) {
  if (depth_ == 1) {
    metadata_ = name == "__metadata__";
    name_ = name;
    tensor_ = {};
  }
  const bool of_tensor = depth_ == 2 && !metadata_;
  at_offsets_ = of_tensor && name == "data_offsets";
  if (depth_ <= 2) {
    part_ = of_tensor && name == "dtype"   ? Part::kType
            : of_tensor && name == "shape" ? Part::kShape
                                           : Part::kOther;
  }
  return true;
}

// A scalar value.
bool Header::Value() {
  // The header is an object and so is each tensor; its offsets are two numbers.
  const bool misplaced =
      depth_ == 0 || (depth_ == 1 && !metadata_) || at_offsets_ || (numbers_ >= 0 && depth_ == 3);
  return sound_ = sound_ && !misplaced;
}

bool Header::string(string_t& text) {
  constexpr size_t kLongestType = 16;
  if (part_ == Part::kType && depth_ == 2) tensor_.type = text.substr(0, kLongestType);
  return Value();
}

bool Header::number_unsigned(number_unsigned_t value) {
  constexpr size_t kMostSizes = 16;
  if (part_ == Part::kShape && depth_ == 3 && tensor_.shape.size() < kMostSizes) {
    tensor_.shape.push_back(static_cast<int64_t>(value));
  }
  if (numbers_ < 0 || depth_ != 3) return Value();
  if (++numbers_ == 2) end_of_one_ = value;
  return true;
}

bool Header::Open(bool list) {
  const bool wrong = (list && (depth_ == 0 || (depth_ == 1 && !metadata_))) ||
                     (!list && at_offsets_) || numbers_ >= 0;
  if (depth_ == 1) {
    has_offsets_ = false;
    end_of_one_ = 0;
  }
  if (list && at_offsets_) {
    numbers_ = 0;
    has_offsets_ = true;
  }
  at_offsets_ = false;
  ++depth_;
  return sound_ = sound_ && !wrong;
}

bool Header::Close() {
  --depth_;
  if (numbers_ >= 0) {
    sound_ = sound_ && numbers_ == 2;
    numbers_ = -1;
    return sound_;
  }
  if (depth_ != 1 || metadata_) return sound_;
  if (end_of_one_ > end_) {
    end_ = end_of_one_;
    last_ = name_.substr(0, 80);
  }
  if (tensors_ != nullptr) tensors_->emplace_back(name_, tensor_);
  return sound_ = sound_ && has_offsets_;
}

}  // namespace

absl::Status CheckSafetensors(const std::string& path, NamedTensors* kept) {
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(path));
  SFT_ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenForRead(path));
  unsigned char length_bytes[8] = {};
  SFT_ASSIGN_OR_RETURN(const size_t got,
                       io::ReadAt(fd.get(), 0, reinterpret_cast<char*>(length_bytes), 8, path));
  if (got < 8) return DataLoss(fmt::format("is truncated: {} bytes", size));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > kMaxHeaderBytes) return DataLoss("is not a safetensors file");
  if (length + 8 > static_cast<uint64_t>(size)) {
    return DataLoss(
        fmt::format("is truncated: {} bytes, the header alone needs {}", size, length + 8));
  }
  std::string header(length, '\0');
  SFT_ASSIGN_OR_RETURN(const size_t read, io::ReadAt(fd.get(), 8, header.data(), length, path));
  Header tensors(kept);
  if (!tensors.Read(std::string_view(header).substr(0, read))) {
    return DataLoss("is not a safetensors file");
  }
  const uint64_t end = tensors.end();
  // So that the sum below cannot overflow.
  if (end > static_cast<uint64_t>(size)) {
    return DataLoss(fmt::format("is truncated: {} bytes, tensor {} ends at {}", size,
                                ToUtf8(tensors.last()), end));
  }
  if (length + 8 + end != static_cast<uint64_t>(size)) {
    return DataLoss(fmt::format("is truncated: {} bytes of {}", size, length + 8 + end));
  }
  return absl::OkStatus();
}

}  // namespace sft::worker
