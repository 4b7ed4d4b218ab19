package credentials

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/processcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
)

const (
	// signatureLife is the time in seconds for which a signature is valid. 15 minutes suffice, because it is used at
	// once.
	signatureLife = "900"
	// awsTimeout bounds the search for keys, which may contact the machine's metadata service and AWS.
	awsTimeout = 10 * time.Second
	// Keys are renewed keysEarly before they expire.
	keysEarly = 5 * time.Minute
)

// AWS signs logins to brokers with AWS_MSK_IAM. Its keys come from the AWS SDK's default chain: environment, shared
// files, web identity, container, machine. They are renewed before they expire.
type AWS struct {
	region string
	agent  string
	keys   aws.CredentialsProvider
	signer *v4.Signer
	now    func() time.Time // replaced in tests
}

// NewAWS sets up the search for keys, without contacting anybody yet. region is the region of the brokers. role is the
// ARN of a role to assume with the keys, or empty. agent is the name by which AWS knows this program.
func NewAWS(ctx context.Context, region, role, agent string) (*AWS, error) {
	c, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(region), awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, awsError(err)
	}
	keys := c.Credentials
	if role != "" {
		keys = aws.NewCredentialsCache(
			stscreds.NewAssumeRoleProvider(sts.NewFromConfig(c), role,
				func(o *stscreds.AssumeRoleOptions) { o.RoleSessionName = agent }),
			func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = keysEarly })
	}
	return &AWS{region, agent, keys, v4.NewSigner(), time.Now}, nil
}

// Sign returns the login message for the broker at address, host:port: a signed request for kafka-cluster:Connect to
// the host, with the query as a JSON object with lower-case names. Sources: the mechanism's description in
// aws/aws-msk-iam-auth, and AWS Signature Version 4 with the signature in the query.
func (a *AWS) Sign(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, awsTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	keys, err := a.keys.Retrieve(ctx)
	if err != nil {
		return nil, awsError(err)
	}
	query := url.Values{"Action": {"kafka-cluster:Connect"}, "X-Amz-Expires": {signatureLife}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/?"+query.Encode(), nil)
	if err != nil {
		return nil, errors.New("AWS: the broker's address is not host:port")
	}
	nothing := sha256.Sum256(nil)
	signed, _, err := a.signer.PresignHTTP(ctx, keys, req, hex.EncodeToString(nothing[:]), "kafka-cluster",
		a.region, a.now())
	if err != nil {
		return nil, errors.New("AWS: cannot sign the login request")
	}
	u, err := url.Parse(signed)
	if err != nil {
		return nil, errors.New("AWS: cannot sign the login request")
	}
	msg := map[string]string{"version": "2020_10_22", "host": host, "user-agent": a.agent}
	for name, values := range u.Query() {
		msg[strings.ToLower(name)] = values[0]
	}
	return json.Marshal(msg)
}

// awsError says why there are no keys: because of an answer of AWS, or of a failure on the way to it. If an answer may
// repeat what was sent, such as a token or a header that contains one, only the answer's code is shown. Nothing of the
// output of a credential_process is shown.
func awsError(err error) error {
	var answer smithy.APIError
	var program *processcreds.ProviderError
	switch {
	case errors.As(err, &program):
		return errors.New("AWS: the program in credential_process returned no keys")
	case !errors.As(err, &answer):
		return fmt.Errorf("AWS: %w", err)
	case slices.Contains(shownAnswers, answer.ErrorCode()):
		return fmt.Errorf("AWS: %q: %.500q", answer.ErrorCode(), answer.ErrorMessage())
	}
	return fmt.Errorf("AWS: %.200q", answer.ErrorCode())
}

// shownAnswers are the codes of answers that may be shown in full: their messages contain only names of users, roles
// and providers.
var shownAnswers = []string{"AccessDenied", "AccessDeniedException", "InvalidIdentityToken", "RegionDisabledException"}
