#include "common/base/money.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/mail_address.h"

namespace sft {
namespace {

TEST(MoneyTest, AnAmountIsShownToTheHundredth) {
  EXPECT_EQ(MoneyText(0, "EUR"), "0.00 EUR");
  EXPECT_EQ(MoneyText(2'100'000, "EUR"), "2.10 EUR");
  EXPECT_EQ(MoneyText(1'234'567'890'000, ""), "1234567.89");
  EXPECT_EQ(MoneyText(10'004'999, "USD"), "10.00 USD");
  EXPECT_EQ(MoneyText(10'005'000, "USD"), "10.01 USD");
  EXPECT_EQ(MoneyText(9'999, "EUR"), "< 0.01 EUR") << "not nothing";
  EXPECT_EQ(MoneyText(std::numeric_limits<int64_t>::max(), ""), "9223372036854.78");
}

TEST(MoneyTest, APriceIsShownAsItIs) {
  EXPECT_EQ(ExactMoneyText(2'100'000, "EUR"), "2.10 EUR");
  EXPECT_EQ(ExactMoneyText(12'500, "EUR"), "0.0125 EUR");
  EXPECT_EQ(ExactMoneyText(1, ""), "0.000001");
  EXPECT_EQ(ExactMoneyText(30'000'000, ""), "30.00");
}

TEST(MoneyTest, AnAmountIsReadExactly) {
  constexpr int64_t kMost = 1'000'000'000'000;
  EXPECT_EQ(ParseMoney("2", kMost), 2'000'000);
  EXPECT_EQ(ParseMoney("2.10", kMost), 2'100'000);
  EXPECT_EQ(ParseMoney("0.000001", kMost), 1);
  EXPECT_EQ(ParseMoney("1000000", kMost), kMost);
  for (const char* bad : {"", ".", ".5", "5.", "1.0000001", "1,5", "-1", "+1", " 1", "1e3", "nan",
                          "1.2.3", "1000000.000001", "99999999999999999999999"}) {
    EXPECT_EQ(ParseMoney(bad, kMost), std::nullopt) << bad;
  }
}

TEST(MailAddressTest, TakesWhatEverybodyReadsAlike) {
  for (const char* good :
       {"ann@example.com", "a.b+c@mail.example.com", "root@localhost", "x_y@a-b.de"}) {
    EXPECT_TRUE(IsMailAddress(good)) << good;
  }
  for (const char* bad : {"",
                          "ann",
                          "@example.com",
                          "ann@",
                          "ann@@example.com",
                          "a b@example.com",
                          "ann@exa mple.com",
                          "ann@example.com\r\nBcc: eve@example.com",
                          "ann@example.com\n",
                          "\"ann b\"@example.com",
                          "ann@example..com",
                          "a..n@example.com",
                          ".ann@example.com",
                          "ann@-a.com",
                          "ann@[127.0.0.1]",
                          "ann@example.com,eve@example.com",
                          "<ann@example.com>",
                          "ann@example.com>",
                          "änn@example.com",
                          "ann@example.com RCPT"}) {
    EXPECT_FALSE(IsMailAddress(bad)) << bad;
  }
  EXPECT_TRUE(IsMailAddress(std::string(64, 'a') + "@example.com"));
  EXPECT_FALSE(IsMailAddress(std::string(65, 'a') + "@example.com"));
}

}  // namespace
}  // namespace sft
