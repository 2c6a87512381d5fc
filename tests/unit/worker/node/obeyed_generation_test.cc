#include "worker/node/obeyed_generation.h"

#include "common/base/generation.h"
#include "common/io/file.h"
#include "tests/unit/worker/base/test_node.h"

namespace sft::worker {
namespace {

using ObeyedGenerationTest = TestNode;

v1::Welcome WelcomeOf(int64_t generation, const std::string& proof = "") {
  v1::Welcome welcome;
  welcome.set_generation(generation);
  welcome.set_generation_proof(proof);
  return welcome;
}

TEST_F(ObeyedGenerationTest, AnOlderServerIsNotObeyedAlsoByTheWorkersNextLife) {
  ASSERT_TRUE(io::MakeDirs(setup_.data_dir).ok());
  {
    const auto obeyed = ObeyedGeneration::Open(setup_.data_dir).value();
    v1::Register message;
    obeyed->Tell(message);
    EXPECT_EQ(message.generation(), 0);
    EXPECT_TRUE(obeyed->Obey(WelcomeOf(0)).ok()) << "a server of an earlier release";
    EXPECT_TRUE(obeyed->Obey(WelcomeOf(1)).ok());
    EXPECT_TRUE(obeyed->Obey(WelcomeOf(5, std::string("a\0\nb", 4))).ok());
    EXPECT_TRUE(obeyed->Obey(WelcomeOf(5)).ok());
  }
  const auto obeyed = ObeyedGeneration::Open(setup_.data_dir).value();
  v1::Register message;
  obeyed->Tell(message);
  EXPECT_EQ(message.generation(), 5);
  EXPECT_EQ(message.generation_proof(), std::string("a\0\nb", 4)) << "any bytes";
  for (const int64_t older : {0, 1, 4}) {
    const absl::Status refused = obeyed->Obey(WelcomeOf(older));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_NE(Message(refused).find("--above 5"), std::string::npos) << refused;
  }
  EXPECT_TRUE(obeyed->Obey(WelcomeOf(6)).ok());
}

TEST_F(ObeyedGenerationTest, AFileThatCannotBeReadIsToldAndNotTakenForNone) {
  for (const char* text : {"", "five\n", "5", "99999999999999999999\n", "9223372036854775807\n",
                           "1000000000001\n", "-5\n"}) {
    Write(setup_.data_dir + "/generation", text);
    EXPECT_TRUE(absl::IsDataLoss(ObeyedGeneration::Open(setup_.data_dir).status())) << text;
  }
}

TEST_F(ObeyedGenerationTest, ANumberThatNoServerCanHaveIsNotObeyedAndBlocksNone) {
  ASSERT_TRUE(io::MakeDirs(setup_.data_dir).ok());
  const auto obeyed = ObeyedGeneration::Open(setup_.data_dir).value();
  EXPECT_TRUE(obeyed->Obey(WelcomeOf(5)).ok());
  for (const int64_t absurd : {INT64_MAX, kLastGeneration + 1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(obeyed->Obey(WelcomeOf(absurd)))) << absurd;
  }
  EXPECT_TRUE(obeyed->Obey(WelcomeOf(6)).ok());
}

}  // namespace
}  // namespace sft::worker
