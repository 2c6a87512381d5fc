#include "worker/engine/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

// A file with this header text and so many bytes of data, counting from 0.
std::string FileBytes(const std::string& header, size_t data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (size_t i = 0; i < data; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string MessageOfOpening(const std::filesystem::path& path) {
  try {
    SafetensorsFile::Open(path);
  } catch (const UserError& error) {
    return error.what();
  }
  return "opened";
}

TEST(SafetensorsTest, ReadsTensorsWithoutCopyingThem) {
  const TempDir dir;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[11,12]},)"
      R"("e":{"dtype":"BF16","shape":[0,5],"data_offsets":[12,12]}}  )";
  PutFile(dir / "m.safetensors", FileBytes(header, 12));
  at::Tensor b;
  {
    const auto file = SafetensorsFile::Open(dir / "m.safetensors");
    EXPECT_EQ(file->tensors().size(), 4u);
    EXPECT_EQ(file->metadata().at("format"), "pt");
    EXPECT_EQ(file->View("a").sizes(), (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(file->View("e").sizes(), (std::vector<int64_t>{0, 5}));
    EXPECT_EQ(file->View("s").dim(), 0);
    b = file->View("b");
    EXPECT_EQ(b.const_data_ptr(), file->View("b").const_data_ptr());
    EXPECT_TRUE(file->ViewRange("b", 1, 2).equal(at::tensor({9, 10}, at::kByte)));
    EXPECT_THROW(file->ViewRange("b", 2, 2), InternalError);
    EXPECT_THROW(file->View("c"), UserError);
    file->DropPages("b");
  }
  // The mapping outlives the file object.
  EXPECT_TRUE(b.equal(at::tensor({8, 9, 10}, at::kByte)));
}

TEST(SafetensorsTest, CopiesATensorThatIsNotAligned) {
  const TempDir dir;
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
  PutFile(dir / "m", FileBytes(header, 5));
  const at::Tensor b = SafetensorsFile::Open(dir / "m")->View("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.const_data_ptr()) % 4, 0u);
  const unsigned char want[] = {1, 2, 3, 4};
  EXPECT_EQ(std::memcmp(b.const_data_ptr(), want, 4), 0);
}

struct BadFile {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

std::vector<BadFile> BadFiles() {
  const std::string good = FileBytes(Entry("\"F32\"", "[2]", "[0,8]"), 8);
  std::string huge = good;
  huge[7] = static_cast<char>(0x80);  // a header of 2^63 bytes and some
  const auto entry = [](const char* dtype, const char* shape, const char* offsets, size_t data) {
    return FileBytes(Entry(dtype, shape, offsets), data);
  };
  return {
      {"empty", "", "too short"},
      {"half a length", good.substr(0, 5), "too short"},
      {"header of 2^63", huge, "more than the 100000000 allowed"},
      {"cut in the header", good.substr(0, 30), "its header alone"},
      {"cut in the data", good.substr(0, good.size() - 1),
       "promises 8 bytes of data, the file has 7"},
      {"bytes behind the data", good + "x", "promises 8 bytes of data, the file has 9"},
      {"a pickle", "\x80\x02}q" + std::string(60, 'k'), "not a safetensors file"},
      {"not JSON", FileBytes("{\"a\":", 0), "not a JSON object"},
      {"an array", FileBytes("[]", 0), "not a JSON object"},
      {"deep nesting", FileBytes(std::string(100'000, '['), 0), "not a JSON object"},
      {"unknown type", entry("\"F4\"", "[2]", "[0,8]", 8), "type F4, which is not supported"},
      {"type not text", entry("32", "[2]", "[0,8]", 8), "lacks a valid dtype"},
      {"negative size", entry("\"F32\"", "[-2]", "[0,8]", 8), "lacks a valid dtype, shape"},
      {"fraction", entry("\"F32\"", "[2.0]", "[0,8]", 8), "lacks a valid dtype, shape"},
      {"shape not a list", entry("\"F32\"", "2", "[0,8]", 8), "lacks a valid dtype, shape"},
      {"one offset", entry("\"F32\"", "[2]", "[0]", 8), "lacks a valid"},
      {"size of 2^63", entry("\"F32\"", "[9223372036854775808]", "[0,8]", 8), "lacks a valid"},
      {"product overflows", entry("\"F32\"", "[4294967296,4294967296,2]", "[0,0]", 0),
       "does not fill its bytes"},
      {"too few bytes", entry("\"F32\"", "[3]", "[0,8]", 8), "does not fill its bytes 0 to 8"},
      {"offsets turned round", entry("\"F32\"", "[2]", "[8,0]", 8), "does not fill its bytes"},
      {"gap at the start", entry("\"F32\"", "[2]", "[4,12]", 12), "overlap or leave a gap"},
      {"past the end", entry("\"F32\"", "[2]", "[0,8]", 4), "the file has 4"},
      {"overlap",
       FileBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                 6),
       "\"b\" starts at byte 2 of the data instead of 4"},
      {"name twice",
       FileBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                 R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                 4),
       "\"a\" stands there twice"},
      {"metadata not text", FileBytes(R"({"__metadata__":{"x":1}})", 0), "__metadata__"},
  };
}

TEST(SafetensorsTest, RefusesBrokenFilesAndNamesThem) {
  const TempDir dir;
  for (const BadFile& bad : BadFiles()) {
    PutFile(dir / "bad.safetensors", bad.bytes);
    const std::string message = MessageOfOpening(dir / "bad.safetensors");
    EXPECT_THAT(message, HasSubstr(bad.message)) << bad.name;
    EXPECT_THAT(message, HasSubstr("bad.safetensors")) << bad.name;
  }
  EXPECT_THAT(MessageOfOpening(dir / "none"), HasSubstr("No such file"));
  EXPECT_THAT(MessageOfOpening(dir.path()), HasSubstr("not a regular file"));
}

// Every single changed or missing byte of the header either leaves a file that reads within its
// bounds or is refused with a UserError.
TEST(SafetensorsTest, AnyChangedByteOfTheHeaderIsReadSafelyOrRefused) {
  const TempDir dir;
  const std::string good =
      FileBytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  int refused = 0;
  for (size_t i = 0; i < good.size() - 8; ++i) {
    for (const char c : {'\0', '9', '}', '"', '\xff', ' '}) {
      std::string changed = good;
      changed[i] = c;
      PutFile(dir / "f", changed);
      try {
        const auto file = SafetensorsFile::Open(dir / "f");
        for (const auto& [name, info] : file->tensors()) file->View(name).clone();
      } catch (const UserError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

class ModelFilesTest : public ::testing::Test {
 protected:
  void WriteShards() {
    WriteSafetensors(dir_ / "model-1.safetensors",
                     std::vector<NamedTensor>{{"model.a", at::full({2}, 1.0f)}});
    WriteSafetensors(dir_ / "model-2.safetensors",
                     std::vector<NamedTensor>{{"model.b", at::full({3}, 2.0f)}});
    PutIndex(R"({"model.a":"model-1.safetensors","model.b":"model-2.safetensors"})");
  }
  void PutIndex(const std::string& map) {
    PutFile(dir_ / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  }
  std::string Message() {
    try {
      ModelFiles::Open(dir_.path());
    } catch (const UserError& error) {
      return error.what();
    }
    return "opened";
  }
  TempDir dir_;
};

TEST_F(ModelFilesTest, ReadsShardsThroughTheIndex) {
  WriteShards();
  const ModelFiles files = ModelFiles::Open(dir_.path());
  EXPECT_EQ(files.Names(), (std::vector<std::string>{"model.a", "model.b"}));
  EXPECT_TRUE(files.View("model.b").equal(at::full({3}, 2.0f)));
  EXPECT_EQ(files.TotalBytes(), 20u);
  EXPECT_EQ(files.Info("model.a").shape, std::vector<int64_t>{2});
}

TEST_F(ModelFilesTest, AMissingTensorNamesTheNearestOne) {
  WriteShards();
  const ModelFiles files = ModelFiles::Open(dir_.path());
  try {
    files.View("modul.b");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no tensor \"modul.b\"; the nearest name is \"model.b\""));
  }
}

TEST_F(ModelFilesTest, RefusesDirectoriesThatAreNotWhole) {
  EXPECT_THAT(Message(), HasSubstr("has neither model.safetensors nor"));
  PutFile(dir_ / "pytorch_model.bin", "x");
  EXPECT_THAT(Message(), HasSubstr("pickled weights (pytorch_model.bin)"));
  WriteShards();
  EXPECT_EQ(Message(), "opened");
  PutIndex(R"({"model.a":"model-2.safetensors"})");
  EXPECT_THAT(Message(), HasSubstr("places \"model.a\" in model-2.safetensors"));
  PutIndex(R"({"model.a":"../model-1.safetensors"})");
  EXPECT_THAT(Message(), HasSubstr("is not a file name"));
  PutIndex(R"({})");
  EXPECT_THAT(Message(), HasSubstr("lists no tensors"));
  PutFile(dir_ / "model.safetensors.index.json", "{");
  EXPECT_THAT(Message(), HasSubstr("is not JSON"));
  WriteShards();
  std::filesystem::remove(dir_ / "model-2.safetensors");
  EXPECT_THAT(Message(), HasSubstr("model-2.safetensors is missing"));
  WriteShards();
  std::filesystem::resize_file(dir_ / "model-2.safetensors", 0);
  EXPECT_THAT(Message(), HasSubstr("model-2.safetensors: the file has 0 bytes"));
  try {
    ModelFiles::Open(dir_ / "nowhere");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not exist on this node"));
  }
}

TEST_F(ModelFilesTest, ATensorInTwoPlacesIsRefused) {
  WriteShards();
  WriteSafetensors(
      dir_ / "model-2.safetensors",
      std::vector<NamedTensor>{{"model.b", at::full({3}, 2.0f)}, {"model.a", at::full({2}, 3.0f)}});
  EXPECT_THAT(Message(), HasSubstr("model-1.safetensors and model-2.safetensors both hold the "
                                   "tensor \"model.a\""));
  WriteShards();
  PutIndex(R"({"model.a":"model-1.safetensors","model.a":"model-2.safetensors"})");
  EXPECT_THAT(Message(), HasSubstr("index.json: "));
  EXPECT_THAT(Message(), HasSubstr("model.a"));
}

TEST_F(ModelFilesTest, ALinkThatLeadsToItselfIsNamed) {
  std::filesystem::create_symlink("model.safetensors", dir_ / "model.safetensors");
  EXPECT_THAT(Message(), HasSubstr("model.safetensors: Too many levels of symbolic links"));
  std::filesystem::remove(dir_ / "model.safetensors");
  WriteShards();
  std::filesystem::remove(dir_ / "model-2.safetensors");
  std::filesystem::create_symlink("model-2.safetensors", dir_ / "model-2.safetensors");
  EXPECT_THAT(Message(), HasSubstr("model-2.safetensors: Too many levels of symbolic links"));
}

}  // namespace
}  // namespace sft::engine
